"""How a release is made: checked, built, described, summed up and signed. `scripts/release` is its door."""
