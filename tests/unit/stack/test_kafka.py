import uuid

from stack.kafka import new_cluster_id


def test_no_cluster_id_begins_with_a_dash_which_commands_would_take_for_an_option(monkeypatch):
    made = iter([uuid.UUID(bytes=bytes([first] * 16), version=4) for first in (0xF8, 0xFB, 0x01)])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(made))

    found = new_cluster_id()

    assert found.startswith("AQEB")
    assert len(found) == 22
