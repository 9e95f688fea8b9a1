# Messages of the control plane: membership, layout, verdicts, liveness. One ControlMessage is the payload of one frame
# of kind `control`, on a connection that carries nothing else.
@0xe4c7a9b8d1f02536;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tally::schema");

struct ControlMessage {
  union {
    join @0 :Join;
    refused @1 :Failure;
    waiting @2 :Text;            # what the receiver is waiting for, in words
    epoch @3 :Epoch;
    declare @4 :Declare;
    layout @5 :GroupLayout;
    prepared @6 :Prepared;
    verdict @7 :Verdict;
    heartbeat @8 :UInt64;        # the sender's count
    failure @9 :Failure;         # the job or a step can't go on; sent up by a member, down to all
    leave @10 :Text;             # a member's farewell, with the reason
    reload @11 :Text;            # hot configuration keys, as TOML
    measured @12 :Measured;      # a worker's to the coordinator, if link.connections leaves their number open
    links @13 :Links;            # the coordinator's answer to all, once it has heard enough of them
  }
}

struct Join {
  protocol @0 :UInt32;
  version @1 :Text;
  role @2 :UInt8;                # 0 worker, 1 server
  index @3 :UInt32;              # rank or server index
  world @4 :UInt32;              # number of workers the sender expects; 0 from a server
  job @5 :Text;
  incarnation @6 :UInt64;
  host @7 :Text;
  node @8 :Text;
  pid @9 :UInt32;
  endpoints @10 :List(Text);     # where its data links are accepted
  configDigest @11 :UInt64;
  configText @12 :Text;          # the job-scoped keys as TOML, in canonical order
  nicBytesPerSecond @13 :Float64;  # of the NIC that its data links use, in each direction; 0: not known
  nic @14 :Text;                 # tells the NICs of a node apart
  switchPath @15 :Text;          # switches above its machine from the top down, "spine1/leaf3"; empty: not known
}

struct Measured {
  bytesPerSecond @0 :Float64;    # to another host, with as many connections as served best; 0: could not be measured
  connections @1 :UInt32;        # the fewest that came near it
}

struct Links {
  connections @0 :UInt32;        # to each neighbour
}

struct Failure {
  kind @0 :UInt8;                # a StatusKind
  text @1 :Text;
  role @2 :UInt8;                # of the member that failed, if lost
  index @3 :UInt32;
  isMember @4 :Bool;
}

struct Member {
  role @0 :UInt8;
  index @1 :UInt32;              # rank or server index
  position @2 :UInt32;           # workers: place in the ring order
  incarnation @3 :UInt64;
  host @4 :Text;
  node @5 :Text;
  pid @6 :UInt32;
  endpoints @7 :List(Text);
  nicBytesPerSecond @8 :Float64;
  switchPath @9 :Text;
}

struct Epoch {
  epoch @0 :UInt64;
  jobHash @1 :UInt64;
  job @2 :Text;
  members @3 :List(Member);
  configText @4 :Text;
}

struct TensorSpec {
  name @0 :Text;
  elements @1 :UInt64;
  dtype @2 :UInt8;
  shape @3 :List(UInt64);        # dimensions; empty: one, of `elements`
}

struct Declare {
  group @0 :Text;
  tensors @1 :List(TensorSpec);
  buckets @2 :List(Text);        # the caller's own buckets, each a list of tensor names joined by newlines; empty = by cap
  firstStep @3 :UInt64;          # the number of the group's first step
}

struct GroupLayout {
  group @0 :UInt32;
  name @1 :Text;
  epoch @2 :UInt64;              # frames of the group carry this
  tensors @3 :List(TensorSpec);  # rank 0's declaration order
  buckets @4 :List(Bucket);
  exchange @5 :UInt8;            # 0 owners, 1 schedule
  schedule @6 :Text;
  owners @7 :Data;               # one little-endian u16 per slab: index into ownerList; if a codec begins later than
                                 # step 0, first those of the tensors as declared, then those of what it makes of them
  ownerList @8 :List(OwnerRef);
  codecs @9 :Data;               # one byte per tensor: codec id
  firstStep @10 :UInt64;
}

struct Bucket {
  tensors @0 :List(UInt32);      # indices into GroupLayout.tensors
}

struct OwnerRef {
  role @0 :UInt8;
  index @1 :UInt32;              # a server's index, or a worker's position
}

struct Prepared {
  group @0 :UInt32;
  step @1 :UInt64;
  epoch @2 :UInt64;
  nonFinite @3 :Bool;
  skipVote @4 :Bool;
  note @5 :Text;                 # where the non-finite value was seen
  lossScale @6 :Float32 = 1;     # what gradients arrived multiplied by; equal on all ranks
  sharedState @7 :UInt64;        # digest of what codecs carry from step to step that is equal on all ranks
  learningRate @8 :Float32;      # that residuals follow, equal on all ranks; 0: none
}

struct Verdict {
  group @0 :UInt32;
  step @1 :UInt64;
  epoch @2 :UInt64;
  commit @3 :Bool;               # else skip
  reason @4 :Text;
}
