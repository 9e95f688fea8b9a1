"""tally.torch where a step does not count, or training cannot go on: numbers that are not finite, votes, loss scales,
lost ranks, a backward that did not come to its end."""
import os
import signal
import threading
import time

import support


class Scaler:
    """What GradScaler does, without a GPU: torch.amp.GradScaler("cpu") came with torch 2.3."""

    def __init__(self, scale):
        self.scale, self.skipped = scale, 0

    def get_scale(self):
        return self.scale

    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for gradient in gradients:
            gradient.mul_(1 / self.scale)
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            optimizer.step()
            self.scale *= 2
        else:
            self.skipped += 1
            self.scale /= 4


def scaled():
    """Scales change by powers of two, so training with them is training without; one rank's Inf skips on all, and the
    same as if the step had not been, residuals too (topk, C20)."""
    import ddp
    torch = ddp.torch
    rank = ddp.begin()
    weights, skipped = [], None
    for use_scaler in (False, True):
        scaler = Scaler(64.0) if use_scaler else None
        module = ddp.wrap(ddp.mlp())
        if use_scaler:
            attached = ddp.tally.torch.attach(module, scaler)
        else:
            ddp.attach(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        for step, (x, labels) in enumerate(ddp.batches(rank, 12)):
            if step == 6 and not use_scaler:
                continue  # as if it had not been
            optimizer.zero_grad()
            loss = ddp.loss(module(x), labels)
            if use_scaler:
                loss = loss * scaler.get_scale() * (float("inf") if step == 6 and rank == 1 else 1)
                loss.backward()
                assert attached.committed == (step != 6)
                if step == 6:
                    assert all(p.grad.isnan().all() for p in module.parameters())
                    assert "rank 1" in attached.last.reason, attached.last
                scaler.step(optimizer)
                skipped = scaler.skipped
            else:
                loss.backward()
                optimizer.step()
        weights.append(ddp.flat(module))
    return [torch.equal(*weights), skipped, scaler.scale, ddp.equal_everywhere(weights[1])]


def scales_differ():
    import ddp
    import tally
    rank = ddp.begin()
    module = ddp.wrap(ddp.mlp())
    attached = ddp.tally.torch.attach(module, Scaler(2.0 ** rank))
    x, labels = ddp.batches(rank, 1)[0]
    try:
        ddp.loss(module(x), labels).backward()
    except RuntimeError as error:
        assert isinstance(attached.error, tally.Mismatch), attached.error
        assert str(attached.error) in str(error)
        return str(error)


def voted():
    import ddp
    rank = ddp.begin()
    module = ddp.wrap(ddp.mlp())
    attached = ddp.attach(module)
    assert not attached.committed
    found = []
    for step, (x, labels) in enumerate(ddp.batches(rank, 4)):
        module.zero_grad()
        if step == 1 and rank == 1:
            attached.skip_step()
        ddp.loss(module(x), labels).backward()
        nan = [bool(p.grad.isnan().all()) for p in module.parameters()]
        assert len(set(nan)) == 1
        found.append([attached.committed, nan[0], attached.last.reason])
    return found


def killed():
    """Rank 1 dies in its third backward: rank 0's ends with an error that names it, its gradients as backward left
    them."""
    import ddp
    import tally
    torch = ddp.torch
    rank = ddp.begin()
    module = ddp.wrap(ddp.mlp(), gradient_as_bucket_view=True)
    attached = ddp.attach(module, membership__dead="3s", membership__heartbeat="300ms")
    x, labels = ddp.batches(rank, 1)[0]
    for step in range(3):
        module.zero_grad(set_to_none=False)
        loss = ddp.loss(module(x), labels)
        if step == 2 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.monotonic()
        try:
            loss.backward()
        except RuntimeError as error:
            seconds = time.monotonic() - began
            assert isinstance(attached.error, tally.PeerLost) and attached.error.step == 2
            mine = ddp.mlp()
            ddp.loss(mine(x), labels).backward()
            untouched = all(torch.equal(a.grad, b.grad) for a, b in zip(module.parameters(), mine.parameters()))
            try:
                ddp.loss(module(x), labels).backward()
            except RuntimeError as second:
                support.report([str(error), seconds, untouched, str(second)])


def stopped_halfway():
    """A backward that raises after some gradients were handed over cannot be taken back: DDP's next forward says so."""
    import ddp
    torch = ddp.torch
    rank = ddp.begin()

    class Breaks(torch.autograd.Function):
        armed = False

        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            if Breaks.armed:
                raise MemoryError("no memory")
            return gradient

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(20, 200), torch.nn.Linear(200, 10)

        def forward(self, x):
            return self.second(Breaks.apply(self.first(x)))

    module = ddp.wrap(Model(), bucket_cap_mb=0.001)
    ddp.attach(module, bucket__cap="4KiB")
    texts = []
    for step, (x, labels) in enumerate(ddp.batches(rank, 3)):
        Breaks.armed = step == 1
        try:
            ddp.loss(module(x), labels).backward()
        except (RuntimeError, MemoryError) as error:
            texts.append(str(error))
    return texts


def backward_lets_threads_run():
    """Rank 1's backward waits until a thread of rank 0's has run, while rank 0 waits in its own."""
    import ddp
    rank = ddp.begin()
    folder = support.values()
    module = ddp.wrap(ddp.mlp())
    ddp.attach(module)
    x, labels = ddp.batches(rank, 1)[0]
    ddp.loss(module(x), labels).backward()
    loss = ddp.loss(module(x), labels)
    go = os.path.join(folder, "go")
    if rank == 0:
        def work():
            for _ in range(1000):
                time.sleep(0)
            open(go, "w").close()

        thread = threading.Thread(target=work)
        thread.start()
    else:
        deadline = time.monotonic() + 30
        while not os.path.exists(go):
            assert time.monotonic() < deadline
            time.sleep(0.005)
    loss.backward()
    return "done"


def ends_at_once():
    """Python ends right after backward, while the thread that ended the step may still be within torch."""
    import ddp
    rank = ddp.begin()
    module = ddp.wrap(ddp.mlp())
    ddp.attach(module)
    x, labels = ddp.batches(rank, 1)[0]
    loss = ddp.loss(module(x), labels)
    support.report("done")
    loss.backward()


class Faults(support.TestCase):
    def test_a_program_may_end_at_once(self):
        for _ in range(3):
            self.assertEqual(self.run_ranks(ends_at_once), ["done"] * 2)

    def test_a_scaler_sees_it_on_all_ranks(self):
        settings = {"compression.codec": "topk", "compression.ratio": 0.05, "compression.min_compress_bytes": 0}
        for codec in ("none", "topk"):
            for rank in self.run_ranks(scaled, settings={**settings, "compression.codec": codec}):
                self.assertEqual(rank, [True, 1, 64.0 * 2**11 / 4, True])

    def test_scales_that_differ(self):
        for text in self.run_ranks(scales_differ):
            self.assertRegex(text, "loss scale")

    def test_any_rank_may_skip(self):
        for found in self.run_ranks(voted):
            self.assertEqual([one[:2] for one in found], [[True, False], [False, True], [True, False], [True, False]])
            self.assertEqual(found[1][2], "rank 1 voted skip")

    def test_a_killed_rank_is_named(self):
        job = support.run_job(killed)
        self.assertIsNotNone(job.results[0], job.output)
        text, seconds, untouched, again = job.results[0]
        self.assertIn("lost rank 1", text)
        self.assertIn("lost rank 1", again)
        self.assertTrue(untouched)
        self.assertLess(seconds, 20, "the bound of membership.dead is 3 s")

    def test_a_backward_that_stopped(self):
        for broke, told in self.run_ranks(stopped_halfway):
            self.assertIn("no memory", broke)
            self.assertIn("finished reduction in the prior iteration", told)

    def test_other_threads_run_during_backward(self):
        with support.folder() as folder:
            self.run_ranks(backward_lets_threads_run, values=folder)


if __name__ == "__main__":
    support.main(globals())
