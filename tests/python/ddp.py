"""What the tests of tally.torch train: small models on data that differs by rank, by plain DDP and by Tally."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import support
import tally.torch


def begin():
    """The rank, with the framework's own process group underneath. It meets in a file: a port that was free when the
    job began may be taken by now."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{support.shared('store')}", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    return dist.get_rank()


def mlp(bias=True):
    """40,000 parameters: several buckets of DDP's (its first one after 1 MiB or `bucket_cap_mb`) and of Tally's."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 150, bias), nn.ReLU(), nn.Linear(150, 200, bias), nn.Tanh(),
                         nn.Linear(200, 10, bias))


class Tied(nn.Module):
    """Input and output share their weights; a convolution whose weights lie channels last; a frozen layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.embed = nn.Embedding(16, 12)
        self.conv = nn.Conv2d(2, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.frozen = nn.Linear(24, 24)
        self.frozen.requires_grad_(False)
        self.out = nn.Linear(12, 16, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, numbers):
        x = self.frozen(self.embed(numbers).flatten(1))
        x = self.conv(x.view(-1, 2, 3, 4)).mean(1)
        return self.out(x.flatten(1))


class Branches(nn.Module):
    """Which of two branches is used is the caller's choice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b, self.never = nn.Linear(20, 10), nn.Linear(20, 10), nn.Linear(20, 10)

    def forward(self, x, use):
        return sum(getattr(self, name)(x) for name in use)


def wrap(model, **options):
    return DistributedDataParallel(model, **{"bucket_cap_mb": 0.05, **options})


def flat(module):
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def batches(rank, steps, size=16):
    generator = torch.Generator().manual_seed(100 + rank)
    return [(torch.randn(size, 20, generator=generator), torch.randint(10, (size,), generator=generator))
            for _ in range(steps)]


def loss(output, labels):
    return nn.functional.cross_entropy(output, labels)


def train(ddp, rank, steps=10, accumulate=1, none=True, lr=0.05, momentum=0.9):
    """The weights after it."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr, momentum=momentum)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=none)
        parts = batches(rank + 100 * step, accumulate)
        with ddp.no_sync():
            for x, labels in parts[:-1]:
                loss(ddp(x), labels).backward()
        loss(ddp(parts[-1][0]), parts[-1][1]).backward()
        optimizer.step()
    return flat(ddp)


def difference(a, b):
    """Largest, relative to the largest number."""
    return float((a - b).abs().max() / b.abs().max())


def equal_everywhere(weights):
    """Whether all ranks have the same bits."""
    everybody = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, weights)
    return all(torch.equal(weights, other) for other in everybody)


def attach(ddp, **settings):
    """With Tally's buckets smaller than the model and no tensor excepted from compression."""
    return tally.torch.attach(ddp, **{"bucket__cap": "64KiB", "compression__min_compress_bytes": 0, **settings})
