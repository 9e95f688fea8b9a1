# Between processes of one node, over a local socket: who asks for which memory, and whether he has mapped it. The answer
# carries the memory's descriptor beside it.
@0xd2b8c41f7a63e905;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tally::schema");

struct NodeMessage {
  union {
    request @0 :ArenaRequest;
    offer @1 :UInt64;            # bytes of the arena whose descriptor comes with this
    taken @2 :Void;              # the asker has mapped it
  }
}

struct ArenaRequest {
  jobHash @0 :UInt64;
  epoch @1 :UInt64;
  group @2 :UInt32;
  kind @3 :UInt8;                # 0 inputs of the process asked, 1 results of the node
  position @4 :UInt32;           # of the asker
  sharesResult @5 :Bool;         # the asker has mapped the node's results
}

# Transport shm: travels in a frame in the place of its payload, which lies in memory of the sender. Where the frame is the
# first of its region, the region's descriptor comes with it.
struct MemoryNote {
  number @0 :UInt32;             # of the loan: the receiver returns it by that
  region @1 :UInt32;
  offset @2 :UInt64;
  regionBytes @3 :UInt64;
}

# Payload of a credit frame: loans that the receiver needs no more.
struct MemoryReturns {
  numbers @0 :List(UInt32);
}
