"""Which commit changed a file last, so that a reader can check what was known when it was made."""

import subprocess

from benchmarks.fig4_score import last_commit


def commit(folder, name, content, date):
    (folder / name).write_text(content)
    who = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", name), (*who, "commit", "-qm", "made")):
        subprocess.run(["git", *words], cwd=folder, check=True, env={"GIT_COMMITTER_DATE": date})


def test_the_last_commit_of_a_file_is_told_with_its_date_and_whether_the_file_differs(tmp_path):
    file = tmp_path / "forecast.csv"
    file.write_text("of no commit")
    assert last_commit(file) == ""
    commit(tmp_path, file.name, "one", "2026-01-01T10:00:00+00:00")
    commit(tmp_path, file.name, "two", "2026-01-02T10:00:00+00:00")
    commit(tmp_path, "other.csv", "three", "2026-01-03T10:00:00+00:00")
    hashed, date = last_commit(file).split()
    assert date == "2026-01-02T10:00:00+00:00"
    assert hashed.isalnum()
    file.write_text("changed")
    assert last_commit(file) == f"{hashed}+ {date}"
    new = tmp_path / "new.csv"
    new.write_text("not committed")
    assert last_commit(new) == ""
