"""What became of one injected fault."""

from dataclasses import dataclass

GRACE_SECONDS = 10.0  # beyond the time-out of a run: ending processes on a machine that is busy
START_SECONDS = 120.0  # which Ranks allows for a start


@dataclass
class Outcome:
    """One line of the campaign's table.

    ``seconds`` are from the injection to the moment at which the user is told, or at which the
    sweep is complete; ``allowed`` is what they may be. ``wrong`` says what was not as it should be.
    """

    number: int
    kind: str
    detail: str = ""
    error: str = ""  # class of the one error; empty: the run went on
    told: str = ""  # its first line
    seconds: float = 0.0
    allowed: float = 0.0
    hung: int = 0
    lost: int = 0
    left: str = ""
    resumed: int = 0
    missed: int = 0  # the sweep was over before the fault came: not counted
    wrong: str = ""
    code: str = ""  # the digest of the sources, and the day
    date: str = ""

    @property
    def good(self) -> bool:
        """Whether everything was as it should be."""
        return not (self.hung or self.lost or self.left or self.wrong) and bool(self.resumed)
