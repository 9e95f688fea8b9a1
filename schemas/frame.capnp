# The header of every data frame. Bytes that leave a process are described here and in control.capnp, nowhere else.
@0xb3f1c2a4d5e60718;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tally::schema");

enum FrameKind {
  hello @0;     # first frame on a link, from the side that dialled: who it is
  welcome @1;   # its answer: accepted, or refused with a text in the payload
  push @2;      # a worker's encoded contribution, to the owner of the slabs
  reply @3;     # an owner's answer, to every worker
  partial @4;   # schedule: a running sum in fp32; in group 0 of the collective's type, or empty if it only says "here"
  total @5;     # schedule: the finished values, likewise
  control @6;   # payload is a ControlMessage (control.capnp)
  credit @7;    # a transport's own flow control, if it needs any
  nodePush @8;  # inside a node: fp32 gradients for the position that carries the slabs, or where they lie
  nodeReply @9; # inside a node: its answer, to every position of the node
  probe @10;    # bytes that only measure, on connections of their own; empty: its receipt
}

struct Header {
  jobHash @0 :UInt64;
  epoch @1 :UInt64;
  incarnation @2 :UInt64;
  step @3 :UInt64;
  group @4 :UInt32;
  bucket @5 :UInt32;
  position @6 :UInt32;       # sender: a worker's position, or a server's index (role says which)
  role @7 :UInt8;            # 0 worker, 1 server
  kind @8 :FrameKind;
  codec @9 :UInt8;
  codecVersion @10 :UInt8;
  flags @11 :UInt16;         # 1 non-finite, 2 previous step committed, 4 previous step skipped, 8 keep,
                             # 16 in place, 32 zeros
  weight @12 :Float64;       # push: w; partial: weights added so far; reply and total: W; not in nodeReply
  slabs @13 :List(UInt32);   # strictly rising, all of one owner and one bucket
  contributors @14 :List(UInt32);  # positions, where it is not everybody
  payloadBytes @15 :UInt64;
  payloadCrc @16 :UInt32;    # CRC32C of the payload, if hasCrc
  hasCrc @17 :Bool;
  collective @18 :Collective; # standalone collectives only: what the caller asked for, compared by every receiver
  factor @19 :Float32 = 1;   # nodePush in place: what the numbers are to be multiplied by
}

struct Collective {
  elements @0 :UInt64;       # of a rank's block in allGather and reduceScatter
  dtype @1 :UInt8;           # 0 fp32, 1 fp16, 2 bf16, 3 fp64, 4 int8, 5 uint8, 6 int32, 7 int64
  op @2 :UInt8;              # 0 sum, 1 mean, 2 min, 3 max, 4 product, 5 and, 6 or, 7 xor
  call @3 :UInt64;           # its number on the sender, from 1
  kind @4 :UInt8;            # 0 all-reduce, 1 broadcast, 2 all-gather, 3 reduce-scatter
  root @5 :UInt32;           # broadcast: the rank whose numbers all get
}
