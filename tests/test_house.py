"""The house does not grow unseen: `tests/house.toml` has a cap on each number of each folder.

A commit that raises one number lowers others by as much, or says whose budget pays.
"""

import tomllib

from tests import house


def test_no_folder_is_larger_than_its_cap():
    caps = tomllib.loads((house.ROOT / "tests" / "house.toml").read_text())
    folders = house.count_folders()
    assert folders.keys() == caps.keys(), "name each folder in tests/house.toml"
    above = [
        f"{folder}: {name} {counts[name]}, cap {caps[folder][name]}"
        for folder, counts in folders.items()
        for name in house.COUNTED
        if counts[name] > caps[folder][name]
    ]
    assert not above
