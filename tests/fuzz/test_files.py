"""A short part of `tests.fuzz.files`: damaged files, and writers that are killed."""

import json

import pytest

from tests.programs import python


@pytest.mark.slow
def test_damaged_files_are_refused_and_killed_writers_lose_nothing():
    outcome = python("-m", "tests.fuzz.files", "--tries", 60, "--kills", 2)
    rows = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert [row.get("killed") for row in rows] == ["save", "fit_chunks", "tune", None]
    assert all(row["kills"] == 2 for row in rows[:3])
    assert rows[3]["refused"] + rows[3]["identical"] == 60 and rows[3]["refused"] > 30
