from quota.units import Mistake, Mistakes, parse_bound


def test_places_further_in_share_one_list_and_keep_their_paths() -> None:
    mistakes = Mistakes()
    values = mistakes.at("quotas", 2).at("values")
    values.at(0).add("first")
    mistakes.add("second", line=7)
    assert values.found == (Mistake("first", ("quotas", 2, "values", 0)), Mistake("second", (), 7))


def test_a_mistake_is_printed_with_what_is_known_of_its_place() -> None:
    path = ("quotas", 2, "values", 0)
    assert str(Mistake("bad", path, 12)) == "line 12, quotas[2].values[0]: bad"
    assert str(Mistake("bad", path)) == "quotas[2].values[0]: bad"
    assert str(Mistake("bad", (0, "mode"))) == "[0].mode: bad"
    assert str(Mistake("bad", (), 12)) == "line 12: bad"
    assert str(Mistake("bad")) == "bad"


def test_a_bound_that_is_refused_is_a_mistake_at_its_place_and_the_rest_goes_on() -> None:
    mistakes, read = Mistakes(), []
    for number, text in enumerate(["1MB", "1KB", "2MB"]):
        with mistakes.at(number).bound():
            read.append(parse_bound("producer_byte_rate", text))
    assert read == [1e6, 2e6]
    assert [one.path for one in mistakes.found] == [(1,)]
