"""What would change nothing is refused, and the answer says so: no word is ignored."""

import pytest

from ddlnb.clusters.file import read_cluster
from ddlnb.engines.settings import DEFAULTS
from ddlnb.engines.targets import targets_of
from ddlnb.errors import InputError
from ddlnb.files import CLUSTERS


def test_a_measurement_refuses_a_size_that_no_method_has():
    sizes = DEFAULTS.changed(partition="1MB")
    with pytest.raises(InputError, match="partition '1MB' changes nothing: WFBP-A2A has none"):
        targets_of("WFBP-A2A", sizes)
    assert any(one.name == "ByteScheduler-A2A" for one in targets_of("all", sizes))


@pytest.mark.parametrize("key", ["hardware", "network", "about"])
def test_a_word_of_a_cluster_file_is_no_number(tmp_path, key):
    path = tmp_path / "mine.yaml"
    lines = (CLUSTERS / "v100-nvlink.yaml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{key}:")]
    path.write_text("\n".join([*kept, f"{key}: 3"]))
    with pytest.raises(InputError, match=f"{key} 3: input should be a valid string"):
        read_cluster(path)


def test_facts_are_free_text_that_may_be_numbers(tmp_path):
    path = tmp_path / "mine.yaml"
    text = (CLUSTERS / "v100-nvlink.yaml").read_text()
    path.write_text(text.replace("facts:\n", "facts:\n  bought: 2019\n"))
    assert read_cluster(path).facts["bought"] == "2019"
