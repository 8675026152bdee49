"""A step's samples are the same however they are shared out, and a run that goes on has them at once."""

import pytest
from torch.utils.data import DataLoader, Dataset

from bert_recipes.data.order import StepBatches


GLOBAL_BATCH, STEPS = 12, 5


class Numbers:
    """Sample k is k; remembers what was asked for."""

    def __init__(self):
        self.asked = []

    def __len__(self):
        return GLOBAL_BATCH * STEPS

    def keys(self, begin, end):
        self.asked.append((begin, end))
        return list(range(begin, end))


@pytest.mark.parametrize(("processes", "batch"), [(1, 12), (1, 3), (2, 6), (2, 2), (3, 4), (4, 1)])
def test_a_step_has_its_samples_whatever_the_split(processes, batch):
    accumulation = GLOBAL_BATCH // (processes * batch)
    shares = [
        list(StepBatches(Numbers(), batch_size=batch, num_processes=processes, process_index=rank))
        for rank in range(processes)
    ]
    for step in range(STEPS):
        micro = range(step * accumulation, (step + 1) * accumulation)
        samples = sorted(key for share in shares for number in micro for key in share[number])
        assert samples == list(range(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH))
    assert {len(share) for share in shares} == {STEPS * accumulation}


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_done_is_stepped_over_and_not_read(rank):
    settings = {"batch_size": 3, "num_processes": 2, "process_index": rank}
    whole = list(StepBatches(Numbers(), **settings))
    order = Numbers()
    resumed = StepBatches(order, **settings, skipped=4)
    assert len(resumed) == len(whole)
    found = list(resumed)
    assert found[:4] == [[]] * 4
    assert found[4:] == whole[4:]
    assert min(begin for begin, _ in order.asked) >= 4 * 6


def test_the_trainers_way_of_stepping_over_reads_no_sample():
    from accelerate import skip_first_batches

    class Squares(Dataset):
        def __getitem__(self, key):
            assert key >= 24
            return key * key

    loader = DataLoader(Squares(), batch_sampler=StepBatches(Numbers(), batch_size=12, skipped=2), collate_fn=list)
    assert list(skip_first_batches(loader, 2)) == [[k * k for k in range(s, s + 12)] for s in (24, 36, 48)]
