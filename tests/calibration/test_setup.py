"""Set-ups of calibrations: what the kept file says, and what is wrong with another."""

import pytest
import yaml

from ddlnb.errors import InputError
from ddlnb.files import CALIBRATION
from ddlnb.survey.testbed import fig4_workload, read_setup, survey_setup

SURVEY = yaml.safe_load((CALIBRATION / "survey.yaml").read_text())


def test_seconds_of_a_model_become_a_factor_of_its_workload():
    setup = survey_setup()
    (found,) = [one for one in setup.parameters if one.name == "compute_factor@resnet50"]
    assert found.prior == pytest.approx(0.229 / fig4_workload("resnet50").compute_seconds)
    assert len(setup.parameters) == len(SURVEY["parameters"])
    assert [cluster.name for cluster in setup.clusters] == SURVEY["clusters"]
    assert setup.model_error == SURVEY["model_error"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"effect": "inside_shar"}, "unknown effect 'inside_shar'.*did you mean 'inside_share'"),
        ({"prior": "5 apples"}, "parameters 1: .*'5 apples'"),
        ({"low": "20 GB/s"}, "parameters 1: .*low below high"),
        ({"spread": -1}, "parameters 1 spread -1: .*greater than 0"),
        ({"colour": "red"}, "parameters 1 has the unknown key 'colour'; remove it"),
        ({"why": None}, "parameters 1 why None: .*string"),
        ({"network": "10GbE", "model": "resnet50"}, "a network or models, not both"),
        ({"method": "MG-WFPB"}, "unknown method 'MG-WFPB'.*did you mean 'MG-WFBP'"),
        ({"effect": "compute_factor", "model": "vgg"}, "unknown model with a workload 'vgg'"),
        ({"effect": "compute_factor", "model": ["a", "b"]}, "a, b must be an entry for each"),
    ],
)
def test_a_wrong_entry_is_named_with_its_key_and_its_rule(tmp_path, change, message):
    first = {**SURVEY["parameters"][0], **change}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**SURVEY, "parameters": [first]}))
    with pytest.raises(InputError, match=r"mine\.yaml: .*" + message) as raised:
        read_setup(path, {})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clusters: []", "lacks the key 'parameters'; add it"),
        ("clusters: [", "is not YAML"),
        ("", "is empty; write one key and its value a line, such as clusters"),
    ],
)
def test_a_file_that_is_no_set_up_is_one_sentence(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        read_setup(path, {})
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_setup(tmp_path / "absent.yaml", {})
