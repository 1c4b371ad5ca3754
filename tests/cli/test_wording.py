"""Numbers as sentences for a person have them."""

import pytest

from fastbert.wording import counted, duration, figure


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (counted(1, "row"), "1 row"),
        (counted(0, "row"), "0 rows"),
        (counted(2000, "row"), "2,000 rows"),
        (counted(1.0, "minute"), "1 minute"),
        (counted(0.5, "minute"), "0.5 minutes"),
        (duration(0.84), "0.8 seconds"),
        (duration(119.9), "119.9 seconds"),
        (duration(120), "2.0 minutes"),
        (duration(7194), "119.9 minutes"),
        (duration(7200), "2.0 hours"),
        (duration(172_440), "47.9 hours"),
        (duration(2 * 86400), "2.0 days"),
        (duration(1000 * 86400), "1,000.0 days"),
        (figure(50.1587), "50.16"),
        (figure(12345.6), "12,346"),
        (figure(12345), "12,345"),
        (figure("2x128"), "2x128"),
    ],
)
def test_a_number_and_what_it_counts(found, said):
    assert found == said
