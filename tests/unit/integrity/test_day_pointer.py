"""The targets of undo and redo, without a database: as in an editor."""

from include.integrity.days.day_pointer import Move, PublicationHistory


def trail(*moves):
    return PublicationHistory.of([Move(*move) for move in moves])


def test_a_day_never_published_has_nothing_to_undo_or_redo():
    assert (trail().before, trail().undone) == ((), ())


def test_undo_leads_back_one_by_one_to_the_speed_layer():
    published = trail(("publish", None, 1), ("publish", 1, 2))
    assert published.before == (1, None)
    assert trail(("publish", None, 1), ("publish", 1, 2), ("undo", 2, 1)).before == (None,)


def test_redo_leads_forward_again_one_by_one():
    moves = [("publish", None, 1), ("publish", 1, 2), ("undo", 2, 1), ("undo", 1, None)]
    assert trail(*moves).undone == (1, 2)
    assert trail(*moves, ("redo", None, 1)).undone == (2,)
    assert trail(*moves, ("redo", None, 1), ("redo", 1, 2)).before == (1, None)


def test_a_publication_cuts_off_what_was_undone():
    moves = [("publish", None, 1), ("publish", 1, 2), ("undo", 2, 1), ("publish", 1, 3)]
    assert (trail(*moves).before, trail(*moves).undone) == ((1, None), ())


def test_a_redo_takes_the_last_undo_back_however_far_it_went():
    moves = [("publish", None, 1), ("publish", 1, 2), ("publish", 2, 3), ("undo", 3, 1)]
    assert (trail(*moves).before, trail(*moves).undone) == ((None,), (3,))
    again = [*moves, ("undo", 1, None)]
    assert trail(*again).undone == (1, 3)
    back = trail(*again, ("redo", None, 1))
    assert (back.before, back.undone) == ((None,), (3,))
    back = trail(*again, ("redo", None, 1), ("redo", 1, 3))
    assert (back.before, back.undone) == ((2, 1, None), ())


def test_an_undo_to_what_was_cut_off_is_a_new_step():
    moves = [("publish", None, 1), ("publish", 1, 2), ("undo", 2, 1), ("publish", 1, 3), ("undo", 3, 2)]
    assert (trail(*moves).before, trail(*moves).undone) == ((3, 1, None), ())
