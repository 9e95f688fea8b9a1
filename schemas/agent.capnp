# Between a training process and its node's tally-worker, over a local socket. Each message is one packet; memory
# travels as a descriptor beside it. One answer per question; buckets' ends come by themselves.
@0xa8d3f1b2c96e4705;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tally::agent::schema");  # its own, as frames and control messages have structs of the same names

struct AgentMessage {
  union {
    body @0 :UInt64;             # a message of so many bytes that lies in the memory whose descriptor comes with this
    memory @1 :UInt64;           # bytes of the memory whose descriptor comes with this; a later message says what for

    # From the training process.
    attach @2 :Attach;
    declare @3 :Data;            # a ControlMessage of kind declare
    keep @4 :Tensor;             # not answered
    submit @5 :Submit;           # answered by bucketEnd
    endStep @6 :EndStep;         # stepEnd
    giveUp @7 :GiveUp;           # has waited for step.timeout; not answered
    collective @8 :Collective;   # in the memory sent last: what is given; from the next multiple of 64, what is made
    makeBuffer @9 :UInt64;       # elements; answered by buffer
    reduceBuffer @10 :ReduceBuffer;
    exportState @11 :UInt32;     # of a group; answered by memory and reply
    importState @12 :UInt32;     # the state is in the memory sent last
    residual @13 :Tensor;        # as exportState
    askStats @14 :Void;
    leave @15 :Void;
    refused @23 :Text;           # a standalone call that its process refused itself: the other ranks may be in it; not answered
    abort @24 :Text;             # the reason; not answered

    # From tally-worker.
    attached @16 :Attached;
    declared @17 :Declared;      # after a memory for each region
    bucketEnd @18 :BucketEnd;
    stepEnd @19 :StepEnd;
    buffer @20 :Buffer;          # after a memory for each region
    stats @21 :Stats;
    reply @22 :Outcome;          # the answer to everything else, and to whatever failed
  }
}

struct Attach {
  protocol @0 :UInt32;
  version @1 :Text;
  config @2 :Text;               # its settings as TOML
}

struct Attached {
  workers @0 :UInt32;
  servers @1 :UInt32;
  epoch @2 :UInt64;
  description @3 :Text;          # of the exchange
  localRank @4 :UInt32;
}

struct Tensor {
  group @0 :UInt32;              # the how many-th of this rank's, from 0
  tensor @1 :UInt32;             # in this rank's order of declaration
}

struct Bucket {
  group @0 :UInt32;
  bucket @1 :UInt32;
}

struct GiveUp {
  bucket @0 :Bucket;
  step @1 :UInt64;               # that it was submitted in; another one's is over
}

struct Submit {
  bucket @0 :Bucket;
  factor @1 :Float32;            # what the gradient is multiplied by
  declared @2 :Float64;          # and what it counts for
  learningRate @3 :Float32;
}

struct EndStep {
  group @0 :UInt32;
  skip @1 :Bool;                 # the vote
  factor @2 :Float32;
  declared @3 :Float64;
  learningRate @4 :Float32;
  lossScale @5 :Float32;
}

struct Collective {
  kind @0 :UInt8;
  dtype @1 :UInt8;
  op @2 :UInt8;
  root @3 :UInt32;
  elements @4 :UInt64;
}

struct ReduceBuffer {
  number @0 :UInt32;             # the how many-th of this rank's, from 0
  op @1 :UInt8;
}

struct Place {
  region @0 :UInt32;             # the how many-th memory that was sent for the group or buffer, from 0
  offset @1 :UInt64;
}

struct Declared {
  id @0 :UInt32;
  step @1 :UInt64;               # that comes next
  buckets @2 :List(Tensors);
  memory @3 :List(TensorMemory);  # per tensor, in this rank's order of declaration
  description @4 :Text;
}

struct Tensors {
  tensors @0 :List(UInt32);
}

struct TensorMemory {
  input @0 :Place;               # in the type that was declared
  output @1 :Place;              # fp32
  output16 @2 :Place;            # of a tensor of 16 bits
}

struct BucketEnd {
  bucket @0 :Bucket;
  outcome @1 :Outcome;
}

struct StepEnd {
  step @0 :UInt64;
  skipped @1 :Bool;
  reason @2 :Text;
}

struct Buffer {
  input @0 :Place;
  output @1 :Place;
}

struct Stats {
  bytesSent @0 :UInt64;
  bytesReceived @1 :UInt64;
  framesSent @2 :UInt64;
  framesReceived @3 :UInt64;
  stepsCommitted @4 :UInt64;
  stepsSkipped @5 :UInt64;
  poolAllocations @6 :UInt64;
  engineCpuSeconds @7 :Float64;
  saturated @8 :UInt64;
  residualL1 @9 :Float64;
  residualBytes @10 :UInt64;
  connections @11 :UInt32;
  measuredBytesPerSecond @12 :Float64;
}

struct Outcome {
  kind @0 :UInt8;                # a StatusKind
  text @1 :Text;
}
