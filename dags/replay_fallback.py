"""
# replay_fallback

Has every gateway send the events in its fallback store to Kafka. Started by hand.

**What a run does**: asks the gateways one after the other to drain their stores, and returns how many events were sent,
still wait, and are set aside. It fails while events wait. Gateways drain by themselves when Kafka is back, and every
rebuild drains first: use it to see that the stores are empty, for example before a person is forgotten.

**Danger**: none. A record that is sent twice has the same event id, and counts once. Events that are set aside stay.

**How to run again**: trigger it, or clear the task. On a shell: `pipeline gateway drain`.
"""

from airflow.sdk import DAG

from include.airflow_support.defaults import dag_arguments
from include.airflow_support.tasks import replay_fallback
from include.runtime.settings import pipeline_names

for pipeline in pipeline_names():
    with DAG(
        **dag_arguments("replay_fallback", "gateway-fallback", pipeline, __doc__, "by hand"),
        description="Drains the fallback store of every gateway.",
        schedule=None,
        is_paused_upon_creation=False,  # nothing starts by itself
    ):
        replay_fallback(pipeline)
