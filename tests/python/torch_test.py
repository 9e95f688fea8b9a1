"""tally.torch.attach against plain DDP: the same training, whatever DDP does with its buckets."""
import support

TOLERANCE = 2e-6  # fp32: other orders of addition, over ten steps


def plain_against_tally(make, options=None, **how):
    """[difference from plain DDP, equal on all ranks, committed]; the job's mode and codec are the launcher's."""
    import ddp
    rank = ddp.begin()
    plain = ddp.train(ddp.wrap(make(), **(options or {})), rank, **how)
    module = ddp.wrap(make(), **(options or {}))
    attached = ddp.attach(module)
    ours = ddp.train(module, rank, **how)
    return [ddp.difference(ours, plain), ddp.equal_everywhere(ours), attached.committed, attached.client.describe()]


def ten_steps():
    import ddp
    return plain_against_tally(ddp.mlp)


def ten_steps_as_view():
    import ddp
    return plain_against_tally(ddp.mlp, {"gradient_as_bucket_view": True})


def changing_data_and_accumulation():
    """C23: fifty steps, accumulation of 1, 2, 3, gradients set to none and to zero."""
    import ddp
    rank = ddp.begin()
    worst, n = 0.0, 0
    for view in (False, True):
        for none in (False, True):
            for accumulate in (1, 2, 3):
                options = {"gradient_as_bucket_view": view}
                plain = ddp.train(ddp.wrap(ddp.mlp(), **options), rank, 9, accumulate, none)
                module = ddp.wrap(ddp.mlp(), **options)
                attached = ddp.tally.torch.attach(module)
                ours = ddp.train(module, rank, 9, accumulate, none)
                assert attached.last.step == 8 and attached.committed
                worst, n = max(worst, ddp.difference(ours, plain)), n + 1
    return [worst, n]


def static_graph():
    import ddp
    return plain_against_tally(ddp.mlp, {"static_graph": True})


def halves():
    """fp16 parameters: the exact means, rounded once; small integers, so that the sum is exact."""
    import ddp
    torch = ddp.torch
    rank = ddp.begin()

    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.low = torch.nn.Parameter(torch.zeros(3000, dtype=torch.float16))
            self.high = torch.nn.Parameter(torch.zeros(50))

        def forward(self, x):
            return (self.low.float() * x).sum() + (self.high * x[:50]).sum()

    module = ddp.wrap(Half(), bucket_cap_mb=0.001)
    attached = ddp.attach(module)
    numbers = torch.arange(3000.0) % 97 - 48
    equal = []
    for step in range(3):
        module.zero_grad()
        module(numbers * (rank + 1 + step)).backward()
        mean = numbers * (2 + step)
        equal += [torch.equal(module.module.low.grad, mean.half()), torch.equal(module.module.high.grad, mean[:50])]
    return equal + [attached.committed]


def tied():
    """Tied weights once, strided gradients, a frozen layer."""
    import ddp
    torch = ddp.torch
    rank = ddp.begin()
    weights = []
    for ours in (False, True):
        module = ddp.wrap(ddp.Tied(), bucket_cap_mb=0.001)
        if ours:
            names = [name for name, _ in ddp.attach(module)._parameters]
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for step in range(10):
            numbers = torch.randint(16, (8, 2), generator=torch.Generator().manual_seed(7 * step + rank))
            optimizer.zero_grad()
            ddp.loss(module(numbers), numbers[:, 0]).backward()
            optimizer.step()
        weights.append(ddp.flat(module))
    return [ddp.difference(weights[1], weights[0]), ddp.equal_everywhere(weights[1]), names]


def unused():
    """find_unused_parameters: ranks use different branches; what nobody uses keeps its gradient of none."""
    import ddp
    torch = ddp.torch
    rank = ddp.begin()
    uses = ["a", "ab", "b", "a" if rank else "b", "ab"]
    weights = []
    for ours in (False, True):
        module = ddp.wrap(ddp.Branches(), find_unused_parameters=True)
        if ours:
            ddp.attach(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for use, (x, labels) in zip(uses, ddp.batches(rank, len(uses))):
            optimizer.zero_grad(set_to_none=True)
            ddp.loss(module(x, use), labels).backward()
            optimizer.step()
        assert module.module.never.weight.grad is None
        weights.append(ddp.flat(module))
    return [ddp.difference(weights[1], weights[0]), ddp.equal_everywhere(weights[1])]


def unused_accumulated():
    """C30: no_sync over branches. What only the accumulated part used stays each rank's own in DDP of torch 1.13 itself, so
    ranks end apart there; with Tally they end where DDP's do."""
    import ddp
    torch = ddp.torch
    rank = ddp.begin()
    steps = [("a", "b"), ("b", "b"), ("a", "a" if rank else "b"), ("ab", "a")]
    weights = []
    for ours in (False, True):
        module = ddp.wrap(ddp.Branches(), find_unused_parameters=True)
        if ours:
            ddp.attach(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        batches = iter(ddp.batches(rank, 2 * len(steps)))
        for first, last in steps:
            optimizer.zero_grad(set_to_none=False)
            with module.no_sync():
                x, labels = next(batches)
                ddp.loss(module(x, first), labels).backward()
            x, labels = next(batches)
            ddp.loss(module(x, last), labels).backward()
            optimizer.step()
        weights.append(ddp.flat(module))
    return [ddp.difference(weights[1], weights[0]), [ddp.equal_everywhere(end) for end in weights]]


def dropped():
    """A step that was begun, whose module nobody has any more: what was handed over stays, and the error of the job's end
    is an error."""
    import gc
    import weakref
    import numpy
    import ddp
    with ddp.tally.join() as client:
        group = client.declare_group({"w": ((1 << 20,), "float32")})
        numbers = numpy.ones(1 << 20, numpy.float32)
        alive = weakref.ref(numbers)
        group.submit(0, [numbers])
        del group, numbers
        gc.collect()
        held = alive() is not None
        client.abort("the test is over") if client.rank == 0 else None
    return [held]


def residual_waits():
    """topk: a step in which rank 0 does not use a branch leaves what it had not sent for it."""
    import ddp
    torch = ddp.torch
    rank = ddp.begin()
    module = ddp.wrap(ddp.Branches(), find_unused_parameters=True)
    attached = ddp.attach(module)

    def step(use, number):
        x, labels = ddp.batches(rank + 10 * number, 1)[0]
        module.zero_grad()
        ddp.loss(module(x, use), labels).backward()
        return attached.client.stats().residual_l1

    step("ab", 0)
    # Nothing at all used but a: b's and never's residuals stay, and no number travels for them.
    before = attached._declared().output_float("b.weight").copy()
    carried = step("a", 1)
    assert not attached._declared().output_float("b.weight").any() and before.any()
    return carried > 0


def two_modules():
    """Two DDP modules in one backward, stepped alternately by two optimizers, and one of them alone."""
    import ddp
    torch = ddp.torch
    rank = ddp.begin()
    weights = []
    for ours in (False, True):
        torch.manual_seed(4)
        first, second = ddp.wrap(torch.nn.Linear(20, 30)), ddp.wrap(torch.nn.Linear(30, 10))
        if ours:
            attached = [ddp.attach(first), ddp.tally.torch.attach(second)]
            assert attached[0].client is attached[1].client and attached[0].name != attached[1].name
        optimizers = [torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters(), lr=0.01)]
        for step, (x, labels) in enumerate(ddp.batches(rank, 10)):
            for optimizer in optimizers:
                optimizer.zero_grad()
            hidden = first(x).relu()
            if step == 5:
                hidden = hidden.detach()
            ddp.loss(second(hidden), labels).backward()
            optimizers[1].step()
            if step != 5:
                optimizers[0].step()
        weights.append(torch.cat([ddp.flat(first), ddp.flat(second)]))
    return [ddp.difference(weights[1], weights[0]), ddp.equal_everywhere(weights[1]),
            [one.last.step for one in attached]]


def uneven():
    """DDP's join: rank 1 has fewer batches."""
    return uneven_by(3)


def without_batches():
    """DDP's join: rank 1 has none at all."""
    return uneven_by(0)


def uneven_by(fewer):
    import ddp
    torch = ddp.torch
    rank = ddp.begin()
    weights = []
    for ours in (False, True):
        module = ddp.wrap(ddp.mlp())
        if ours:
            attached = ddp.attach(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        with module.join():
            for x, labels in ddp.batches(rank, 6 if rank == 0 else fewer):
                optimizer.zero_grad()
                ddp.loss(module(x), labels).backward()
                optimizer.step()
        weights.append(ddp.flat(module))
    return [ddp.difference(weights[1], weights[0]), attached.last.step]


def compressed():
    """The loss before and after on one task, without and with the job's codec."""
    import ddp
    torch = ddp.torch
    rank = ddp.begin()
    teacher = torch.randn(20, 10, generator=torch.Generator().manual_seed(9))

    def batch(seed):
        x = torch.randn(64, 20, generator=torch.Generator().manual_seed(seed))
        return x, (x @ teacher).argmax(1)

    losses = []
    for ours in (False, True):
        module = ddp.wrap(ddp.mlp())
        if ours:
            attached = ddp.attach(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
        for step in range(150):
            x, labels = batch(2 * step + rank)
            optimizer.zero_grad()
            ddp.loss(module(x), labels).backward()
            optimizer.step()
        x, labels = batch(-1)
        losses.append(float(ddp.loss(module(x), labels).detach()))
    before = float(ddp.loss(ddp.mlp()(x), labels).detach())
    stats = attached.client.stats()
    return [before, *losses, stats.residual_l1, stats.bytes_sent, ddp.equal_everywhere(ddp.flat(module))]


def checkpoint():
    """F19: twenty steps of topk, and ten, a new job, ten more: the same bits. What does not fit is refused."""
    import os
    import ddp
    import tally
    torch = ddp.torch
    rank = ddp.begin()
    folder, part = support.values()
    path = os.path.join(folder, f"{rank}.pt")
    module = ddp.wrap(ddp.mlp())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    attached = ddp.attach(module)
    steps = {"whole": range(20), "first": range(10), "second": range(10, 20)}[part]
    if part == "second":
        saved = torch.load(path)
        module.load_state_dict(saved["module"])
        optimizer.load_state_dict(saved["optimizer"])
        for change, kind in (({"rank": 1 - rank}, tally.Mismatch), ({"size": 3}, tally.Mismatch),
                             ({"version": 9}, tally.Unsupported)):
            try:
                attached.load_state_dict({**saved["tally"], **change})
            except kind:
                continue
            raise AssertionError(f"taken: {change}")
        attached.load_state_dict(saved["tally"])
    for step in steps:
        x, labels = ddp.batches(rank + 100 * step, 1)[0]
        optimizer.zero_grad()
        ddp.loss(module(x), labels).backward()
        optimizer.step()
    if part == "first":
        torch.save({"module": module.state_dict(), "optimizer": optimizer.state_dict(),
                    "tally": attached.state_dict()}, path)
    try:
        attached.load_state_dict(attached.state_dict())
    except tally.InvalidArgument as error:
        assert "first backward" in str(error)
    else:
        raise AssertionError("loaded within a training")
    assert attached.last.step == steps[-1]
    return [ddp.flat(module).double().sum().item(), ddp.flat(module).numpy().tobytes().hex()[:4000]]


def weights():
    """Unequal batches, weighted: the gradient of all samples together."""
    import ddp
    torch = ddp.torch
    rank = ddp.begin()
    module = ddp.wrap(ddp.mlp())
    attached = ddp.attach(module)
    sizes = [24, 8]
    parts = [ddp.batches(other, 1, sizes[other])[0] for other in range(2)]
    attached.set_weight(sizes[rank])
    ddp.loss(module(parts[rank][0]), parts[rank][1]).backward()
    one = ddp.mlp()
    ddp.loss(one(torch.cat([x for x, _ in parts])), torch.cat([labels for _, labels in parts])).backward()
    return ddp.difference(torch.cat([p.grad.flatten() for p in module.parameters()]),
                          torch.cat([p.grad.flatten() for p in one.parameters()]))


def refused():
    import ddp
    import tally
    torch = ddp.torch
    ddp.begin()

    def error(give):
        try:
            give()
        except tally.Error as why:
            return [type(why).__name__, str(why)]
        raise AssertionError("taken")

    class FullyShardedDataParallel(torch.nn.Module):
        """By name, as torch's own needs a GPU."""

    found = [error(lambda: tally.torch.attach(FullyShardedDataParallel())),
             error(lambda: tally.torch.attach(torch.nn.Sequential(torch.nn.Linear(2, 2), FullyShardedDataParallel()))),
             error(lambda: tally.torch.attach(torch.nn.Linear(2, 2))),
             error(lambda: tally.torch.attach(ddp.wrap(torch.nn.Linear(2, 2).double())))]
    module = ddp.wrap(torch.nn.Linear(2, 2))
    ddp.attach(module)
    found.append(error(lambda: ddp.attach(ddp.wrap(torch.nn.Linear(2, 2)))))
    return found


class AgainstPlain(support.TestCase):
    def check_equal(self, results):
        for difference, equal, committed, how in results:
            self.assertLess(difference, TOLERANCE, how)
            self.assertTrue(equal and committed, how)

    def test_ps(self):
        results = self.run_ranks(ten_steps, servers=2)
        self.check_equal(results)
        self.assertIn("2 servers", results[0][3])

    def test_ring_of_three(self):
        self.check_equal(self.run_ranks(ten_steps, ranks=3))

    def test_ring_of_four_as_view(self):
        self.check_equal(self.run_ranks(ten_steps_as_view, ranks=4))

    def test_hybrid(self):
        self.check_equal(self.run_ranks(ten_steps, ranks=3, servers=1, settings={"aggregation.mode": "hybrid"}))

    def test_hierarchical(self):
        self.check_equal(self.run_ranks(ten_steps, settings={"aggregation.mode": "hierarchical"}))

    def test_static_graph(self):
        self.check_equal(self.run_ranks(static_graph))

    def test_accumulation_and_changing_data(self):
        for worst, n in self.run_ranks(changing_data_and_accumulation, timeout_s=90):
            self.assertLess(worst, TOLERANCE)
            self.assertEqual(n, 12)

    def test_halves(self):
        for rank in self.run_ranks(halves, ranks=3):
            self.assertEqual(rank, [True] * 7)

    def test_tied_weights_and_strided_gradients(self):
        for difference, equal, names in self.run_ranks(tied):
            self.assertLess(difference, TOLERANCE)
            self.assertTrue(equal)
            self.assertEqual(names, ["embed.weight", "conv.weight", "conv.bias"])

    def test_unused_parameters(self):
        for difference, equal in self.run_ranks(unused):
            self.assertLess(difference, TOLERANCE)
            self.assertTrue(equal)

    def test_two_modules(self):
        for difference, equal, steps in self.run_ranks(two_modules):
            self.assertLess(difference, TOLERANCE)
            self.assertTrue(equal)
            self.assertEqual(steps, [8, 9])

    def test_a_rank_without_inputs(self):
        for difference, step in self.run_ranks(without_batches):
            self.assertLess(difference, TOLERANCE)
            self.assertEqual(step, 5)

    def test_unused_parameters_with_accumulation(self):
        for difference, (plain_equal, equal) in self.run_ranks(unused_accumulated):
            self.assertLess(difference, TOLERANCE)
            self.assertEqual(equal, plain_equal)

    def test_a_dropped_group_is_read_until_the_job_ends(self):
        self.assertEqual(self.run_ranks(dropped), [[True], [True]])

    def test_uneven_inputs(self):
        for difference, step in self.run_ranks(uneven):
            self.assertLess(difference, TOLERANCE)
            self.assertEqual(step, 5)

    def test_weights(self):
        for difference in self.run_ranks(weights):
            self.assertLess(difference, TOLERANCE)


class Compressed(support.TestCase):
    def test_trains(self):
        dense = None
        for codec, servers in (("none", 0), ("int8", 1), ("topk", 0)):
            settings = {"compression.codec": codec, "compression.ratio": 0.05}
            ranks = self.run_ranks(compressed, servers=servers, settings=settings)
            for before, plain, ours, residual, sent, equal in ranks:
                self.assertLess(plain, before / 2)
                self.assertLess(ours, before / 2, codec)
                self.assertTrue(equal)
                self.assertEqual(residual > 0, codec != "none")
                dense = dense or sent
                self.assertLess(sent, {"none": 1.1, "int8": 0.4, "topk": 0.4}[codec] * dense, codec)

    def test_residuals_of_unused_parameters_wait(self):
        settings = {"compression.codec": "topk", "compression.ratio": 0.05}
        self.assertEqual(self.run_ranks(residual_waits, settings=settings), [True, True])

    def test_checkpoint(self):
        settings = {"compression.codec": "topk", "compression.ratio": 0.05}
        with support.folder() as folder:
            whole, _, second = (self.run_ranks(checkpoint, values=[folder, part], settings=settings)
                                for part in ("whole", "first", "second"))
        self.assertEqual(whole, second)


class Refused(support.TestCase):
    def test_by_name(self):
        for sharded, inside, bare, double, twice in self.run_ranks(refused):
            self.assertEqual(sharded[0], "Unsupported")
            self.assertIn("FullyShardedDataParallel", sharded[1])
            self.assertEqual(sharded, inside)
            self.assertEqual(bare[0], "InvalidArgument")
            self.assertIn("got Linear", bare[1])
            self.assertEqual(double[0], "Unsupported")
            self.assertIn("weight is torch.float64", double[1])
            self.assertEqual(twice[0], "InvalidArgument")
            self.assertIn("joined its job already", twice[1])


if __name__ == "__main__":
    support.main(globals())
