"""The corpus of tasks on a real Ray cluster of two nodes on this machine."""

import pytest
from python_process import run_python
from small_corpora import contents_of


pytestmark = pytest.mark.slow


@pytest.fixture
def address(monkeypatch):
    """The address of a cluster whose nodes have a core each."""
    utils = pytest.importorskip("ray.cluster_utils", reason="needs Ray (pip install ray)")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield cluster.address
    cluster.shutdown()


def test_tasks_of_ray_make_the_store_of_one_machine(address, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    tasks = "--executor ray --mem_per_cpu_gb 1"
    store = tmp_path / "store"
    run_python(f"recipes/prepare_on_cluster.py {corpus.flags} {tasks} --output_dir {store}")
    assert contents_of(store) == corpus.contents
