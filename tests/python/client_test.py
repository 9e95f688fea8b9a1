"""Jobs through tally.join: collectives, groups, errors, threads and Ctrl-C."""
import os
import signal
import sys
import threading
import time

import support

QUICK = {"membership.dead": "3s", "membership.heartbeat": "300ms"}


def gives(kind, call, *texts):
    """The error that `call` ends with; fails unless it is of the kind and says the texts."""
    import tally
    try:
        call()
    except tally.Error as error:
        assert isinstance(error, kind), repr(error)
        assert all(text in str(error) for text in texts), str(error)
        return error
    raise AssertionError(f"expected {kind.__name__}")


def collectives():
    import numpy
    import tally
    import torch
    with tally.join(aggregation__mode="ring") as client:
        rank, size = client.rank, client.size
        assert (size, client.local_rank, client.servers) == (3, rank, 0)
        assert client.describe().startswith("schedule ring")
        # C01: every layout gives the exact sum in the caller's own; worker and position differ.
        base = ((numpy.arange(64 * 6) * 7 % 251) - 125).astype(numpy.float32).reshape(64, 6)
        for layout in (lambda a: a, lambda a: a.T, lambda a: a[:, ::2], lambda a: a[::-1, ::-3]):
            mine = base * (rank + 1)
            untouched = mine.copy()
            assert client.all_reduce(layout(mine)) is not None
            layout(untouched)[...] = layout(base) * 6
            assert (mine == untouched).all()
        tensor = torch.from_numpy(base * (rank + 1)).t()
        assert client.all_reduce(tensor, "mean") is tensor and (tensor.t().numpy() == base * 2).all()
        flags = numpy.array([1 << rank], numpy.uint8)
        assert client.all_reduce(flags, "or")[0] == 7
        assert client.all_reduce(bytearray([rank, 9]), "max") == bytearray([2, 9])
        frozen = numpy.zeros(3, numpy.float32)
        frozen.flags.writeable = False
        gives(tally.InvalidArgument, lambda: client.all_reduce(frozen), "read-only")
        gives(tally.InvalidArgument, lambda: client.all_reduce(b"abc"), "read-only")
        gives(tally.InvalidArgument, lambda: client.all_reduce(memoryview(bytearray(8))[::2]), "gaps")
        gives(tally.InvalidArgument, lambda: client.all_reduce(base, "average"), "'average'", "mean")
        gives(tally.InvalidArgument, lambda: client.all_reduce(numpy.zeros(3, int), "mean"))
        gives(tally.InvalidArgument, lambda: client.reduce_scatter(numpy.zeros((4, 2))), "3 ranks")
        gives(tally.InvalidArgument, lambda: client.all_gather(bytes(2)), "out=")
        small = numpy.zeros(3, numpy.float32)
        gives(tally.InvalidArgument, lambda: client.all_gather(base, out=small), "expected 1152", "got 3")
        gives(tally.InvalidArgument, lambda: client.broadcast(base, root=3))
        assert (client.broadcast(numpy.full(5, rank), 1) == 1).all()
        assert client.all_gather(torch.tensor([[rank, -rank]])).tolist() == [[[0, 0]], [[1, -1]], [[2, -2]]]
        room = bytearray(6)
        assert client.all_gather(bytes([rank, 7]), out=room) == bytearray([0, 7, 1, 7, 2, 7])
        part = client.reduce_scatter(numpy.arange(6.0).reshape(3, 2)[:, ::-1])
        assert part.tolist() == [[6 * rank + 3, 6 * rank]]
        assert client.reduce_scatter(torch.ones(6, dtype=torch.bfloat16), "mean").tolist() == [1, 1]
        client.barrier()
        assert client.stats().frames_sent > 0 and client.epoch >= 1
    gives(tally.Unavailable, client.barrier)
    client.leave()
    return "done"


def groups():
    import numpy
    import tally
    client = tally.join()
    rank = client.rank
    group = client.declare_group({"matrix": ((5, 7), "float32"), "half": ((4,), "float16"),
                                  "none": numpy.zeros((0, 3), numpy.float32)},
                                 buckets=[["half"], ["none", "matrix"]])
    assert group.buckets == ((1,), (2, 0)) and group.number("half") == 1
    base = numpy.arange(35, dtype=numpy.float32).reshape(5, 7)
    for turn, layout in enumerate((lambda a: a, lambda a: numpy.asfortranarray(a),
                                   lambda a: numpy.repeat(a, 2, 1)[:, ::2],
                                   lambda a: numpy.ascontiguousarray(a[::-1])[::-1])):
        assert group.step == turn
        mine = layout(base * (rank + 1))
        mine.flags.writeable = False  # inputs are only read
        ticket = group.submit(1, [numpy.zeros((0, 3), numpy.float32), mine])
        assert not ticket.done()  # buckets go in their order
        halves = group.input("half")
        assert halves.dtype == numpy.float16 and halves.shape == (4,)
        halves[:] = [rank, 0, 1, -rank]
        group.submit(0)
        ticket.wait()
        assert ticket.done()
        assert group.end_step() == tally.StepResult(turn, True, "")
        assert (group.output("matrix") == base * 1.5).all()
        assert group.output("half").tolist() == [0.5, 0, 1, -0.5] == group.output_float(1).tolist()
    output = group.output("matrix")
    assert not output.flags.writeable
    empty = numpy.zeros((0, 3), "f4")
    gives(tally.InvalidArgument, lambda: group.submit(1, [empty, base.T]), "7x5", "matrix")
    gives(tally.InvalidArgument, lambda: group.submit(1, [empty, base.astype("f8")]), "expected fp32")
    gives(tally.InvalidArgument, lambda: group.submit(1, [base]), "2 tensors")
    error = gives(tally.InvalidArgument, lambda: group.submit(9))
    assert (error.rank, error.step, error.bucket, error.peer) == (rank, 4, 9, None)
    gives(tally.InvalidArgument, lambda: group.keep("bias"), "'bias'")
    # Weights: rank 0 counts three times.
    group.set_weight(3 if rank == 0 else 1)
    group.submit(1, [numpy.zeros((0, 3), "f4"), numpy.full((5, 7), rank, "f4")])
    gives(tally.InvalidArgument, lambda: group.set_weight(2))
    group.end_step()
    assert (output == 0.25).all()
    # A loss scale is taken out.
    group.set_loss_scale(8)
    group.submit(1, [numpy.zeros((0, 3), "f4"), numpy.full((5, 7), 16, "f4")])
    group.end_step()
    assert (output == 2).all()
    # Votes and numbers that are not finite.
    result = group.end_step(skip=rank == 1)
    assert (result.step, result.committed) == (6, False) and "rank 1" in result.reason
    group.input("matrix")[2, 3] = numpy.nan if rank == 1 else 0
    group.submit(1)
    result = group.end_step()
    assert not result.committed and "matrix" in result.reason and numpy.isnan(output).any()
    gives(tally.InvalidArgument, lambda: client.declare_group({"x": ((3,), "int32")}), "int32")
    gives(tally.InvalidArgument, lambda: client.declare_group({"x": ((3,), "float32")}, buckets=[["y"]]), "y")
    # Memory that was given out outlives the names of its client and group.
    view = group.input("matrix")
    client.leave()
    del client, group, ticket
    view[0, 0] = 5
    return bool(view[0, 0] == 5)


def state():
    """Error feedback over a restart: two steps, and one step each in two groups with the state carried over."""
    import numpy
    import tally
    with tally.join(compression__codec="topk", compression__ratio=0.1, compression__min_compress_bytes=0) as client:
        gradient = (numpy.arange(1000, dtype=numpy.float32) % 37 + client.rank)
        whole = client.declare_group({"g": gradient}, "whole")
        for _ in range(2):
            whole.submit(0, [gradient])
            whole.end_step()
        first = client.declare_group({"g": gradient}, "first")
        first.submit(0, [gradient])
        first.end_step()
        saved = first.export_state()
        second = client.declare_group({"g": gradient}, "second", first_step=1)
        gives(tally.Corrupt, lambda: second.import_state(saved[:-1]))
        second.import_state(saved)
        second.submit(0, [gradient])
        second.end_step()
        assert (second.output("g") == whole.output("g")).all() and client.stats().residual_l1 > 0
        return "done"


def without_numpy():
    sys.modules["numpy"] = None  # an import of it fails
    import tally
    with tally.join() as client:
        group = client.declare_group([("a", ((2, 3), "float32")), ("b", ((4,), "bfloat16")), ("c", ((), "float32"))])
        a, b = group.input("a"), group.input("b")
        assert (a.format, a.shape, b.format) == ("f", (2, 3), "H")
        a[1, 2], b[3] = client.rank + 1, 0x3F80
        for bucket in range(len(group.buckets)):
            group.submit(bucket)
        group.end_step()
        assert group.output("a")[1, 2] == 1.5 and group.output("a").readonly
        assert group.output("b")[3] == 0x3F80 and group.output_float("b")[3] == 1
        assert client.all_reduce(bytearray([1, 2])) == bytearray([2, 4])
        return "done"


def other_threads_run():
    """Rank 1 comes late, when told; while rank 0 waits for it, a thread of rank 0's goes on."""
    import numpy
    import tally
    folder = support.values()
    with tally.join() as client:
        group = client.declare_group({"g": ((8,), "float32")})
        turns = 0
        if client.rank == 0:
            def work():
                nonlocal turns
                while turns < 1000:
                    turns += 1
                    time.sleep(0)
                open(os.path.join(folder, "go"), "w").close()

            thread = threading.Thread(target=work)
            ticket = group.submit(0, [numpy.ones(8, numpy.float32)])
            thread.start()
            ticket.wait()
            thread.join()
        else:
            deadline = time.monotonic() + 30
            while not os.path.exists(os.path.join(folder, "go")):
                assert time.monotonic() < deadline, "rank 0's thread did not run while rank 0 waited"
                time.sleep(0.005)
            group.submit(0, [numpy.ones(8, numpy.float32)])
        group.end_step()
        return turns


def interrupted():
    """Ctrl-C on rank 0 while it waits for rank 1, which waits for the end of its own step."""
    import tally
    client = tally.join(**{key.replace(".", "__"): value for key, value in QUICK.items()})
    group = client.declare_group({"g": ((8,), "float32")})
    client.barrier()
    try:
        if client.rank == 0:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            client.barrier()
        else:
            group.end_step()
    except KeyboardInterrupt:
        return "interrupted"
    except tally.Error as error:
        return [type(error).__name__, str(error), error.step]


def forked():
    import tally
    with tally.join() as client:
        child = os.fork()
        if child == 0:
            try:
                gives(tally.InvalidArgument, client.barrier, "forked")
                client.leave()
                del client
                os._exit(0)
            except BaseException:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        client.barrier()
        return status


def ended_by_exception():
    import tally
    if os.environ["RANK"] == "1":
        with tally.join():
            raise RuntimeError("the data set is gone")
    with tally.join() as client:
        error = gives(tally.Error, client.barrier, "rank 1", "the data set is gone")
        support.report([error.kind, error.rank])


def uncaught():
    """As above, by a program that only joined and then ended."""
    import tally
    client = tally.join()
    if client.rank == 1:
        raise RuntimeError("the data set is gone")
    error = gives(tally.Error, client.barrier, "rank 1", "the data set is gone")
    support.report([error.kind, error.rank])


def killed():
    import tally
    client = tally.join(**{key.replace(".", "__"): value for key, value in QUICK.items()})
    group = client.declare_group({"g": ((8,), "float32")})
    client.barrier()
    if client.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    error = gives(tally.PeerLost, group.end_step, "rank 1")
    support.report([error.rank, error.step, time.monotonic() - began])


def disagree():
    import tally
    with tally.join() as client:
        shape = (8,) if client.rank == 0 else (9,)
        gives(tally.Mismatch, lambda: client.declare_group({"g": (shape, "float32")}), "g", "8", "9")
        return "done"


def again_and_again():
    """R01: jobs joined, used and dropped leave no thread or descriptor behind, nor does one that was refused."""
    import numpy
    import tally

    def once(number):
        client = tally.join(job__name=f"job{number}", job__workers=1, worker__rank=0)
        group = client.declare_group({"g": ((8,), "float32")})
        ticket = group.submit(0, [numpy.ones(8, numpy.float32)])
        group.end_step()
        assert ticket.done()
        client.leave()
        gives(tally.Error, lambda: tally.join(job__workers=1, worker__rank=3))

    def count():
        deadline = time.monotonic() + 10  # threads end a moment after they were told to
        while threading.active_count() > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        return [threading.active_count(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))]

    once(0)
    before = count()
    for number in range(1, 20):
        once(number)
    return [before, count()]


class Clients(support.TestCase):
    def test_collectives(self):
        self.assertEqual(self.run_ranks(collectives, ranks=3), ["done"] * 3)

    def test_groups(self):
        for servers in 0, 1:
            self.assertEqual(self.run_ranks(groups, servers=servers), [True] * 2)

    def test_state(self):
        self.run_ranks(state)

    def test_without_numpy(self):
        self.run_ranks(without_numpy)

    def test_other_threads_run_while_one_waits(self):
        with support.folder() as folder:
            self.assertEqual(self.run_ranks(other_threads_run, values=folder), [1000, 0])

    def test_keyboard_interrupt_ends_the_wait_and_the_job(self):
        interrupted_rank, other = self.run_ranks(interrupted)
        self.assertEqual(interrupted_rank, "interrupted")
        self.assertEqual((other[0], other[2]), ("Unavailable", 0))
        self.assertIn("rank 0", other[1])
        self.assertIn("interrupted by KeyboardInterrupt", other[1])

    def test_a_forked_child_has_no_part(self):
        self.assertEqual(self.run_ranks(forked), [0, 0])

    def test_an_exception_tells_the_others_why(self):
        for body in ended_by_exception, uncaught:
            job = support.run_job(body)
            self.assertEqual(job.results[0], ["unavailable", 0], job.output)

    def test_a_killed_rank_is_named(self):
        job = support.run_job(killed)
        self.assertEqual(job.results[0][:2], [0, 0], job.output)
        self.assertLess(job.results[0][2], 20, "the bound of membership.dead is 3 s")

    def test_nothing_is_left_behind(self):
        for before, after in self.run_ranks(again_and_again, ranks=1):
            self.assertEqual(before, after)

    def test_ranks_that_disagree(self):
        self.run_ranks(disagree)


if __name__ == "__main__":
    support.main(globals())
