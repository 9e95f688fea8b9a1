"""A small convolutional net on Fashion-MNIST, by PyTorch's DistributedDataParallel; with --tally Tally sums its
gradients.

    tally run -n 2 -- python3 fashion_mnist.py                                           plain DDP over Gloo
    tally run -n 2 -- python3 fashion_mnist.py --tally                                   a ring
    tally run -n 2 --servers 1 --set compression.codec=int8 -- python3 fashion_mnist.py --tally

torchrun --nproc_per_node 2 does as well. The data are Debian's dataset-fashion-mnist, or --data FOLDER.
"""
import argparse
import gzip
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def read(path):
    """An IDX file of bytes as a tensor."""
    raw = gzip.decompress(path.read_bytes())
    shape = [int.from_bytes(raw[4 + 4 * i:8 + 4 * i], "big") for i in range(raw[3])]
    return torch.frombuffer(bytearray(raw[4 + 4 * raw[3]:]), dtype=torch.uint8).view(shape)


def load(folder, part):
    images = read(folder / f"{part}-images-idx3-ubyte.gz").float().unsqueeze(1) / 255 - 0.286
    return images / 0.353, read(folder / f"{part}-labels-idx1-ubyte.gz").long()


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(32 * 49, 256), nn.ReLU(), nn.Linear(256, 10))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tally", action="store_true", help="sum gradients by Tally")
    parser.add_argument("--config", help="the job's TOML file, with --tally")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/usr/share/datasets/fashion-mnist"))
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(build())
    attached = None
    if options.tally:
        import tally.torch
        attached = tally.torch.attach(model, config=options.config)  # the one line

    images, labels = load(options.data, "train")
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))[rank::size]
    began, shown = time.monotonic(), 0
    for step in range(options.steps):
        places = torch.arange(step * options.batch, (step + 1) * options.batch) % len(order)
        chosen = order[places]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) * 10 // options.steps > shown:
            shown += 1
            print(f"step {step + 1:5d} of {options.steps}  loss {loss.item():.4f}", flush=True)
    seconds = time.monotonic() - began

    images, labels = load(options.data, "t10k")
    with torch.no_grad():
        right = sum((model.module(images[i:i + 500]).argmax(1) == labels[i:i + 500]).sum().item()
                    for i in range(0, len(images), 500))
    if rank == 0:
        rows = [("gradients by", attached.client.describe() if attached else "DDP over gloo"), ("ranks", size),
                ("seconds", f"{seconds:.2f}"), ("images/s", f"{options.steps * options.batch * size / seconds:.0f}"),
                ("accuracy", f"{right / len(images):.4f}")]
        if attached:
            rows.append(("MB sent by rank 0", f"{attached.client.stats().bytes_sent / 1e6:.1f}"))
        print("\n" + "\n".join(f"{name:20s} {value}" for name, value in rows))


if __name__ == "__main__":
    main()
