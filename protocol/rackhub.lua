-- SPDX-License-Identifier: Apache-2.0
--
-- Wireshark dissector of rackhub's aggregation packets (UDP ports 47104 to 47119).
--   wireshark -X lua_script:protocol/rackhub.lua run.pcap
--   tshark -X lua_script:protocol/rackhub.lua -r run.pcap -Y 'rackhub.op == 2 && rackhub.flags.overflow == 1'
-- Fields carry the names of the scapy layer: rackhub.job, rackhub.epoch, ...

local rackhub = Proto("rackhub", "rackhub aggregation")

local PORTS = "47104-47119"
local HEADER = 32
local LANES_PER_ROW = 8

local CONTRIBUTE, RESULT, QUERY, STATE = 1, 2, 3, 4
local ops = {
  [CONTRIBUTE] = "CONTRIBUTE",
  [RESULT] = "RESULT",
  [QUERY] = "QUERY",
  [STATE] = "STATE",
}
local phases = { [0] = "AGGREGATING", [1] = "PARTIAL", [2] = "FINAL" }

local OVERFLOW, DIRECT, NONFINITE = 0x01, 0x04, 0x08

local f = {
  version = ProtoField.uint8("rackhub.version", "Version", base.DEC, nil, 0xf0),
  op = ProtoField.uint8("rackhub.op", "Operation", base.DEC, ops, 0x0f),
  flags = ProtoField.uint8("rackhub.flags", "Flags", base.HEX),
  bypass = ProtoField.bool("rackhub.flags.bypass", "Bypass", 8, nil, 0x80, "No switch touches it"),
  ecn = ProtoField.bool("rackhub.flags.ecn", "ECN", 8, nil, 0x40, "A contribution met congestion"),
  phase = ProtoField.uint8("rackhub.flags.phase", "Phase", base.DEC, phases, 0x30),
  nonfinite = ProtoField.bool("rackhub.flags.nonfinite", "Non-finite", 8, nil, 0x08,
    "A worker has a NaN or an infinity"),
  direct = ProtoField.bool("rackhub.flags.direct", "Direct", 8, nil, 0x04,
    "float32 between worker and server"),
  retransmit = ProtoField.bool("rackhub.flags.retransmit", "Retransmit", 8, nil, 0x02,
    "Sent again"),
  overflow = ProtoField.bool("rackhub.flags.overflow", "Overflow", 8, nil, 0x01,
    "Values or their sum do not fit"),
  job = ProtoField.uint16("rackhub.job", "Job"),
  epoch = ProtoField.uint16("rackhub.epoch", "Epoch"),
  stream = ProtoField.uint8("rackhub.stream", "Stream"),
  sender = ProtoField.uint8("rackhub.sender", "Sender", base.DEC, nil, nil,
    "Child index at the receiving node"),
  seq = ProtoField.uint32("rackhub.seq", "Sequence number"),
  chunk = ProtoField.uint32("rackhub.chunk", "Chunk"),
  children = ProtoField.uint32("rackhub.children", "Children", base.HEX, nil, nil,
    "Bitmap of the children summed at the last aggregating node"),
  workers = ProtoField.uint16("rackhub.workers", "Workers", base.DEC, nil, nil,
    "Number of workers in this sum"),
  exponent = ProtoField.int8("rackhub.exponent", "Exponent"),
  max_exponent = ProtoField.int8("rackhub.max_exponent", "Largest exponent"),
  lanes = ProtoField.uint16("rackhub.lanes", "Valid lanes", base.DEC, nil, nil,
    "0: an exponent round, without payload"),
  node = ProtoField.uint16("rackhub.node", "Node", base.DEC, nil, nil,
    "Node of the tree that this packet is for"),
  checksum = ProtoField.uint32("rackhub.checksum", "Checksum", base.HEX),
  payload = ProtoField.bytes("rackhub.payload", "Payload"),
  value = ProtoField.int32("rackhub.values", "Lane"),
  float = ProtoField.float("rackhub.floats", "Lane"),
}
rackhub.fields = f

local e = {
  short = ProtoExpert.new("rackhub.short", "Shorter than the aggregation header",
    expert.group.MALFORMED, expert.severity.ERROR),
  version = ProtoExpert.new("rackhub.version.unknown", "Unknown version",
    expert.group.PROTOCOL, expert.severity.WARN),
  payload = ProtoExpert.new("rackhub.payload.mismatch",
    "The payload is not what the header announces", expert.group.MALFORMED, expert.severity.ERROR),
  flagged = ProtoExpert.new("rackhub.flagged", "Falls back to the server in float32",
    expert.group.SEQUENCE, expert.severity.NOTE),
}
rackhub.experts = e

local function bit_set(byte, mask)
  return math.floor(byte / mask) % 2 == 1
end

local function has_payload(op, flags, lanes)
  if (op ~= CONTRIBUTE and op ~= RESULT) or lanes == 0 then
    return false
  end
  return bit_set(flags, DIRECT) or not (bit_set(flags, OVERFLOW) or bit_set(flags, NONFINITE))
end

local function add_flags(tree, range)
  local branch = tree:add(f.flags, range)
  for _, field in ipairs({ f.bypass, f.ecn, f.phase, f.nonfinite, f.direct, f.retransmit,
    f.overflow }) do
    branch:add(field, range)
  end
end

local function add_lanes(tree, range, field, valid)
  local branch = tree:add(f.payload, range)
  local words = math.floor(range:len() / 4)
  branch:set_text(string.format("Payload: %d lanes, %d valid", words, valid))
  for first = 0, words - 1, LANES_PER_ROW do
    local last = math.min(first + LANES_PER_ROW, words) - 1
    local row = branch:add(range(4 * first, 4 * (last - first + 1)),
      string.format("Lanes %d to %d", first, last))
    for lane = first, last do
      row:add(field, range(4 * lane, 4)):prepend_text(string.format("[%d] ", lane))
    end
  end
end

function rackhub.dissector(buffer, pinfo, root)
  pinfo.cols.protocol = "rackhub"
  local tree = root:add(rackhub, buffer())
  if buffer:len() < HEADER then
    tree:add_proto_expert_info(e.short)
    return buffer:len()
  end

  tree:add(f.version, buffer(0, 1))
  tree:add(f.op, buffer(0, 1))
  add_flags(tree, buffer(1, 1))
  tree:add(f.job, buffer(2, 2))
  tree:add(f.epoch, buffer(4, 2))
  tree:add(f.stream, buffer(6, 1))
  tree:add(f.sender, buffer(7, 1))
  tree:add(f.seq, buffer(8, 4))
  tree:add(f.chunk, buffer(12, 4))
  tree:add(f.children, buffer(16, 4))
  tree:add(f.workers, buffer(20, 2))
  tree:add(f.exponent, buffer(22, 1))
  tree:add(f.max_exponent, buffer(23, 1))
  tree:add(f.lanes, buffer(24, 2))
  tree:add(f.node, buffer(26, 2))
  tree:add(f.checksum, buffer(28, 4))

  local version = math.floor(buffer(0, 1):uint() / 16)
  local op = buffer(0, 1):uint() % 16
  local flags = buffer(1, 1):uint()
  local lanes = buffer(24, 2):uint()
  if version ~= 1 then
    tree:add_proto_expert_info(e.version)
  end
  if bit_set(flags, OVERFLOW) or bit_set(flags, NONFINITE) then
    tree:add_proto_expert_info(e.flagged)
  end

  local rest = buffer:len() - HEADER
  local announced = has_payload(op, flags, lanes)
  -- A payload is padded to full size: never fewer lanes than are valid, and whole words.
  if announced and (rest < 4 * lanes or rest % 4 ~= 0) or (not announced and rest > 0) then
    tree:add_proto_expert_info(e.payload)
  end
  if announced and rest >= 4 then
    local field = bit_set(flags, DIRECT) and f.float or f.value
    add_lanes(tree, buffer(HEADER, rest - rest % 4), field, lanes)
  end

  local name = (ops[op] or string.format("operation %d", op))
  local info = string.format("%s job=%d epoch=%d stream=%d seq=%d chunk=%d node=%d workers=%d",
    name, buffer(2, 2):uint(), buffer(4, 2):uint(), buffer(6, 1):uint(), buffer(8, 4):uint(),
    buffer(12, 4):uint(), buffer(26, 2):uint(), buffer(20, 2):uint())
  if op == STATE then
    local phase = math.floor(flags / 16) % 4
    info = info .. " " .. (phases[phase] or string.format("phase %d", phase))
  end
  for _, flag in ipairs({ { OVERFLOW, "OVERFLOW" }, { NONFINITE, "NONFINITE" },
    { DIRECT, "DIRECT" }, { 0x02, "RETRANSMIT" }, { 0x40, "ECN" }, { 0x80, "BYPASS" } }) do
    if bit_set(flags, flag[1]) then
      info = info .. " [" .. flag[2] .. "]"
    end
  end
  pinfo.cols.info = info
  return buffer:len()
end

DissectorTable.get("udp.port"):add(PORTS, rackhub)
