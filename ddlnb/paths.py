"""Folders of the checkout, absolute, so that nothing depends on the working directory."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
CALIBRATION = DATA / "calibration"
CLUSTERS = DATA / "clusters"
HARDWARE = DATA / "hardware"
MODELS = DATA / "models"
PROFILES = DATA / "profiles"
PUBLISHED = DATA / "published"
SURVEY_NOTES = DATA / "text" / "survey_notes.txt"
DIGITS = DATA / "digits" / "digits.csv.gz"
NOTEBOOKS = ROOT / "notebooks"
BUILD = ROOT / "build"
