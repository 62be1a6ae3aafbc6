-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Wireshark dissector for captures of a Telegraphos fabric (docs/capture.md).
--   wireshark -X lua_script:telegraphos.lua FILE
--
-- The tables are generated from the crates telegraphos-wire and telegraphos-capture; renew them with
--   cargo run -p telegraphos-capture --example dissector

local proto = Proto("telegraphos", "Telegraphos")

-- Where everything is: fields are { name, offset, bytes, how to show it }.
local wire = {
  PROTOCOL_VERSION = 6,
  HEAD_LEN = 8,
  HEADER_LEN = 64,
  MAX_LEN = 73804,
  MAX_BLOCK = 65536,
  MAX_BURST = 64,
  STORE_LEN = 12,
  MAX_MEMBERS = 4096,
  MAX_LAYERS = 4,
  RING_SIDES = 2,
  UNIT = 65536,
  MULTICAST = 65534,
  NO_NODE = 65535,
  HELLO = 1,
  TRUNK = 10,
  REPLY = 3,
  nodes = { [65534] = "all members", [65535] = "no node" },
}
wire.values = {
  Class = { [0] = "Enqueue", [1] = "Request", [2] = "Reflected", [3] = "Reply", },
  Status = { [0] = "Ok", [1] = "Unmapped", [2] = "Rights", [3] = "Stale", [4] = "NotGranted", [5] = "Bounds", [6] = "NodeDown", [7] = "LinkDown", [8] = "Timeout", [9] = "Cut", [10] = "BadSize", [11] = "BadNode", [12] = "PrivateMemory", [13] = "MemoryFault", [14] = "NoSegment", [15] = "Denied", [16] = "Busy", [17] = "Invalid", [18] = "NoSpace", [19] = "Reset", [20] = "Aperture", [21] = "NameTaken", [22] = "BadKey", [23] = "Overlap", [24] = "Length", [25] = "NotLocal", [26] = "Argument", [27] = "QueueHeader", [28] = "NotQueue", [29] = "NoHold", [30] = "NotHome", [31] = "Invalidated", [32] = "Moving", [33] = "BadName", },
  Refusal = { [1] = "NodeTaken", [2] = "NodeRange", [3] = "Version", [4] = "NodeBits", [5] = "OffsetBits", [6] = "Handshake", [7] = "Protocol", [8] = "Elsewhere", [9] = "Topology", [10] = "NoTrunk", [11] = "Silent", [12] = "Rate", },
  Rights = { [1] = "read", [2] = "write", [4] = "atomic", [8] = "enqueue", [16] = "dma", },
  Atomic = { [1] = "Swap", [2] = "Add", [3] = "CompareSwap", },
}
wire.head = { { "frame_length", 0, 4, "Dec" }, { "kind", 4, 1, "Dec" }, { "version", 5, 1, "Dec" }, }
wire.header = { { "packet_version", 0, 1, "Dec" }, { "packet_kind", 1, 1, "Hex" }, { "src", 4, 2, "Node" }, { "dst", 6, 2, "Node" }, { "tag", 8, 4, "Dec" }, { "incarnation", 56, 8, "Hex" }, }
wire.target = { { "target_low", 40, 4, "Hex" }, { "target_high", 12, 4, "Hex" }, }
wire.frames = {
  [1] = { name = "hello", len = 24, check = "None", tail = "None",
    fields = { { "offered_version", 0, 1, "Dec" }, { "node_bits", 1, 1, "Dec" }, { "offset_bits", 2, 1, "Dec" }, { "node", 4, 2, "Node" }, { "enqueue_credits", 8, 4, "Dec" }, { "request_credits", 12, 4, "Dec" }, { "reflected_credits", 16, 4, "Dec" }, { "reply_credits", 20, 4, "Dec" }, } },
  [2] = { name = "welcome", len = 28, check = "None", tail = "None",
    fields = { { "incarnation", 0, 8, "Hex" }, { "nodes", 8, 4, "Dec" }, { "enqueue_credits", 12, 4, "Dec" }, { "request_credits", 16, 4, "Dec" }, { "reflected_credits", 20, 4, "Dec" }, { "reply_credits", 24, 4, "Dec" }, } },
  [3] = { name = "refuse", len = 20, check = "None", tail = "None",
    fields = { { "reason", 0, 2, "Refusal" }, { "offered", 4, 8, "Dec" }, { "expected", 12, 8, "Dec" }, } },
  [4] = { name = "packet", len = 0, check = "None", tail = "Packet",
    fields = { } },
  [5] = { name = "credit", len = 8, check = "None", tail = "None",
    fields = { { "class", 0, 4, "Class" }, { "count", 4, 4, "Dec" }, } },
  [6] = { name = "node-up", len = 16, check = "None", tail = "None",
    fields = { { "node", 0, 2, "Node" }, { "incarnation", 4, 8, "Hex" }, { "longest_block", 12, 4, "Dec" }, } },
  [7] = { name = "node-down", len = 4, check = "None", tail = "None",
    fields = { { "node", 0, 2, "Node" }, } },
  [8] = { name = "reset", len = 8, check = "None", tail = "None",
    fields = { { "incarnation", 0, 8, "Hex" }, } },
  [9] = { name = "group", len = 4, check = "None", tail = "Members",
    fields = { { "page", 0, 4, "Dec" }, } },
  [10] = { name = "trunk", len = 40, check = "None", tail = "None",
    fields = { { "offered_version", 0, 1, "Dec" }, { "switch", 4, 2, "Dec" }, { "peer", 6, 2, "Dec" }, { "epoch", 8, 8, "Dec" }, { "topology", 16, 8, "Hex" }, { "enqueue_credits", 24, 4, "Dec" }, { "request_credits", 28, 4, "Dec" }, { "reflected_credits", 32, 4, "Dec" }, { "reply_credits", 36, 4, "Dec" }, } },
  [11] = { name = "reach", len = 20, check = "None", tail = "None",
    fields = { { "node", 0, 2, "Node" }, { "incarnation", 4, 8, "Hex" }, { "session", 12, 8, "Dec" }, } },
  [12] = { name = "forward", len = 4, check = "None", tail = "MembersAndPacket",
    fields = { { "layer", 0, 1, "Dec" }, { "count", 2, 2, "Dec" }, } },
  [13] = { name = "trunk-credit", len = 8, check = "None", tail = "None",
    fields = { { "class", 0, 1, "Class" }, { "layer", 1, 1, "Dec" }, { "count", 4, 4, "Dec" }, } },
  [14] = { name = "probe", len = 0, check = "None", tail = "None",
    fields = { } },
  [15] = { name = "alive", len = 0, check = "None", tail = "None",
    fields = { } },
  [16] = { name = "ring", len = 32, check = "None", tail = "None",
    fields = { { "node", 0, 2, "Node" }, { "incarnation", 4, 8, "Hex" }, { "own_incarnation", 12, 8, "Hex" }, { "ring_bytes", 20, 4, "Dec" }, { "ring_credits", 24, 4, "Dec" }, { "ring_side", 28, 1, "Dec" }, } },
  [17] = { name = "ring-use", len = 16, check = "None", tail = "None",
    fields = { { "node", 0, 2, "Node" }, { "incarnation", 4, 8, "Hex" }, { "in_use", 12, 4, "Flag" }, } },
  [18] = { name = "ring-lost", len = 12, check = "None", tail = "None",
    fields = { { "node", 0, 2, "Node" }, { "incarnation", 4, 8, "Hex" }, } },
}
wire.packets = {
  [1] = { name = "write", class = 1, len = 64, check = "Access", tail = "None",
    fields = { { "size", 2, 1, "Dec" }, { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, { "data", 32, 8, "Hex" }, { "context", 48, 2, "Dec" }, { "import", 50, 2, "Dec" }, { "import_epoch", 52, 4, "Dec" }, } },
  [2] = { name = "read", class = 1, len = 64, check = "Access", tail = "None",
    fields = { { "size", 2, 1, "Dec" }, { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, { "context", 48, 2, "Dec" }, } },
  [3] = { name = "lookup", class = 1, len = 152, check = "None", tail = "None",
    fields = { { "rights", 52, 2, "Rights" }, { "name", 64, 64, "Text" }, { "secret", 128, 16, "Bytes" }, { "uid", 144, 4, "Dec" }, } },
  [4] = { name = "atomic", class = 1, len = 72, check = "Word", tail = "None",
    fields = { { "size", 2, 1, "Dec" }, { "operation", 3, 1, "Atomic" }, { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, { "operand", 32, 8, "Hex" }, { "context", 48, 2, "Dec" }, { "import", 50, 2, "Dec" }, { "import_epoch", 52, 4, "Dec" }, { "compare", 64, 8, "Hex" }, } },
  [5] = { name = "read-block", class = 1, len = 64, check = "Block", tail = "None",
    fields = { { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, { "length", 44, 4, "Dec" }, { "context", 48, 2, "Dec" }, } },
  [6] = { name = "write-block", class = 1, len = 64, check = "Block", tail = "Block",
    fields = { { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, { "length", 44, 4, "Dec" }, { "context", 48, 2, "Dec" }, { "import", 50, 2, "Dec" }, { "import_epoch", 52, 4, "Dec" }, } },
  [7] = { name = "enqueue", class = 0, len = 64, check = "Word", tail = "None",
    fields = { { "size", 2, 1, "Dec" }, { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, { "data", 32, 8, "Hex" }, { "after", 44, 4, "Dec" }, { "context", 48, 2, "Dec" }, { "import", 50, 2, "Dec" }, { "import_epoch", 52, 4, "Dec" }, } },
  [8] = { name = "reserve", class = 1, len = 64, check = "None", tail = "None",
    fields = { { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, { "imports", 44, 4, "Dec" }, } },
  [9] = { name = "update", class = 1, len = 64, check = "Access", tail = "None",
    fields = { { "size", 2, 1, "Dec" }, { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, { "data", 32, 8, "Hex" }, { "context", 48, 2, "Dec" }, { "import", 50, 2, "Dec" }, { "import_epoch", 52, 4, "Dec" }, } },
  [10] = { name = "join", class = 1, len = 64, check = "None", tail = "None",
    fields = { { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, { "keep", 44, 4, "Flag" }, { "mode", 48, 2, "Dec" }, } },
  [11] = { name = "leave", class = 1, len = 64, check = "None", tail = "None",
    fields = { { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, } },
  [12] = { name = "reflected", class = 2, len = 64, check = "Access", tail = "None",
    fields = { { "size", 2, 1, "Dec" }, { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, { "data", 32, 8, "Hex" }, { "writer", 48, 2, "Node" }, } },
  [13] = { name = "fill", class = 2, len = 64, check = "Block", tail = "Block",
    fields = { { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, { "length", 44, 4, "Dec" }, { "last", 48, 2, "Flag" }, } },
  [14] = { name = "rehome", class = 2, len = 64, check = "None", tail = "None",
    fields = { { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, { "new_generation", 32, 8, "Dec" }, { "new_page", 44, 4, "Dec" }, { "to", 48, 2, "Node" }, } },
  [15] = { name = "move", class = 1, len = 64, check = "None", tail = "None",
    fields = { { "page", 16, 4, "Dec" }, { "offset", 20, 4, "Hex" }, { "generation", 24, 8, "Dec" }, { "new_generation", 32, 8, "Dec" }, { "new_page", 44, 4, "Dec" }, } },
  [16] = { name = "write-burst", class = 1, len = 64, check = "Burst", tail = "Block",
    fields = { { "page", 16, 4, "Dec" }, { "generation", 24, 8, "Dec" }, { "length", 44, 4, "Dec" }, { "context", 48, 2, "Dec" }, { "import", 50, 2, "Dec" }, { "import_epoch", 52, 4, "Dec" }, } },
  [129] = { name = "write-ack", class = 3, len = 64, check = "None", tail = "None",
    fields = { { "status", 50, 2, "Status" }, } },
  [130] = { name = "read-reply", class = 3, len = 64, check = "None", tail = "None",
    fields = { { "data", 32, 8, "Hex" }, { "status", 50, 2, "Status" }, } },
  [131] = { name = "lookup-reply", class = 3, len = 64, check = "None", tail = "None",
    fields = { { "width", 2, 1, "Dec" }, { "page", 16, 4, "Dec" }, { "pages", 20, 4, "Dec" }, { "generation", 24, 8, "Dec" }, { "segment_length", 40, 8, "Dec" }, { "status", 50, 2, "Status" }, { "rights", 52, 2, "Rights" }, } },
  [132] = { name = "atomic-reply", class = 3, len = 64, check = "None", tail = "None",
    fields = { { "data", 32, 8, "Hex" }, { "status", 50, 2, "Status" }, } },
  [133] = { name = "block-reply", class = 3, len = 64, check = "None", tail = "Block",
    fields = { { "length", 44, 4, "Dec" }, { "status", 50, 2, "Status" }, } },
  [134] = { name = "reserve-reply", class = 3, len = 64, check = "None", tail = "None",
    fields = { { "holds", 44, 4, "Dec" }, { "status", 50, 2, "Status" }, } },
  [135] = { name = "copy-ack", class = 3, len = 64, check = "None", tail = "None",
    fields = { { "status", 50, 2, "Status" }, } },
  [136] = { name = "write-acks", class = 3, len = 64, check = "None", tail = "None",
    fields = { { "tags", 16, 32, "Bytes" }, } },
  [137] = { name = "burst-refused", class = 3, len = 64, check = "None", tail = "None",
    fields = { { "performed", 48, 2, "Dec" }, { "status", 50, 2, "Status" }, } },
}
wire.records = {
  [240] = { name = "port-opened", len = 12, check = "None", tail = "None",
    fields = { { "port", 0, 4, "Dec" }, { "room", 4, 4, "Dec" }, { "longest_block", 8, 4, "Dec" }, } },
  [241] = { name = "trunk-opened", len = 12, check = "None", tail = "None",
    fields = { { "port", 0, 4, "Dec" }, { "room", 4, 4, "Dec" }, { "trunk", 8, 2, "Dec" }, } },
  [242] = { name = "port-room", len = 8, check = "None", tail = "None",
    fields = { { "port", 0, 4, "Dec" }, { "room", 4, 4, "Dec" }, } },
  [243] = { name = "no-frame", len = 4, check = "None", tail = "Bytes",
    fields = { { "port", 0, 4, "Dec" }, } },
  [244] = { name = "port-closed", len = 4, check = "None", tail = "None",
    fields = { { "port", 0, 4, "Dec" }, } },
  [245] = { name = "tick", len = 8, check = "None", tail = "None",
    fields = { { "now", 0, 8, "Dec" }, } },
  [246] = { name = "close", len = 4, check = "None", tail = "None",
    fields = { { "port", 0, 4, "Dec" }, } },
  [247] = { name = "notice", len = 0, check = "None", tail = "Text",
    fields = { } },
  [248] = { name = "comment", len = 0, check = "None", tail = "Text",
    fields = { } },
  [249] = { name = "gap", len = 8, check = "None", tail = "None",
    fields = { { "missing", 0, 8, "Dec" }, } },
  [250] = { name = "end", len = 8, check = "None", tail = "None",
    fields = { { "records", 0, 8, "Dec" }, } },
  [251] = { name = "state", len = 4, check = "None", tail = "Text",
    fields = { { "more", 0, 4, "Dec" }, } },
}
-- End of the generated tables; what follows is edited here.

-- Each field has one type, whatever its width here or there: Wireshark reads 1 to 4 bytes into a 32-bit field.
local fields = {}
local makers = { Text = ProtoField.string, Bytes = ProtoField.bytes, Flag = ProtoField.bool }
local function declare(name, show, len)
  if fields[name] then return end
  local abbr, title = "telegraphos." .. name, name:gsub("_", " ")
  -- Rights are bits: their names are added where they are shown.
  local names = show ~= "Rights" and wire.values[show] or show == "Node" and wire.nodes
  if makers[show] then
    fields[name] = makers[show](abbr, title)
  elseif names then
    fields[name] = ProtoField.uint32(abbr, title, base.DEC, names)
  else
    local make = len > 4 and ProtoField.uint64 or ProtoField.uint32
    fields[name] = make(abbr, title, (show == "Hex" or show == "Rights") and base.HEX or base.DEC)
  end
end
local function declare_all(list)
  for _, field in ipairs(list) do declare(field[1], field[4], field[3]) end
end
declare_all(wire.head)
declare_all(wire.header)
declare_all(wire.target)
for _, kinds in ipairs({ wire.frames, wire.packets, wire.records }) do
  for _, kind in pairs(kinds) do declare_all(kind.fields) end
end
declare("class", "Class", 1)
declare("member", "Node", 2)
declare("block", "Bytes", 1)
declare("bytes", "Bytes", 1)
declare("text", "Text", 1)
fields.operation_name = ProtoField.string("telegraphos.operation_name", "what it is")
fields.request_in = ProtoField.framenum("telegraphos.request_in", "request in", base.NONE, frametype.REQUEST)
fields.response_in = ProtoField.framenum("telegraphos.response_in", "response in", base.NONE, frametype.RESPONSE)
fields.response_time = ProtoField.relative_time("telegraphos.response_time", "time since the request")

local list = {}
for _, field in pairs(fields) do list[#list + 1] = field end
proto.fields = list

local malformed = ProtoExpert.new("telegraphos.malformed", "no frame of Telegraphos", expert.group.MALFORMED, expert.severity.ERROR)
local cut = ProtoExpert.new("telegraphos.cut", "cut off by the capture's snap length", expert.group.PROTOCOL, expert.severity.NOTE)
local refused = ProtoExpert.new("telegraphos.refused", "refused", expert.group.RESPONSE_CODE, expert.severity.NOTE)
proto.experts = { malformed, cut, refused }

local interface_name = Field.new("frame.interface_name")

-- Requests that wait for their answer, by link, nodes and tag; the pairs that were found, by frame number.
local waiting, answers, questions = {}, {}, {}
function proto.init()
  waiting, answers, questions = {}, {}, {}
end

local function title(name)
  return name:sub(1, 1):upper() .. name:sub(2):gsub("-", " ")
end

local function node_name(number)
  return wire.nodes[number] or ("node " .. number)
end

local function hex(value)
  -- Of a 64-bit value without its leading zeros.
  local digits = (type(value) == "number") and string.format("%x", value) or value:tohex():gsub("^0+", ""):lower()
  return "0x" .. (digits == "" and "0" or digits)
end

-- Reads a field of up to 4 bytes as a number, of 8 as a UInt64.
local function read(tvb, base, field)
  local range = tvb(base + field[2], field[3])
  if field[3] > 4 then return range:le_uint64() end
  return range:le_uint()
end

-- Adds the fields that have been captured, and returns the values of the numbers among them by name.
local function add(tree, tvb, base, fields_of_kind)
  local values = {}
  for _, field in ipairs(fields_of_kind) do
    local name, at, len, show = field[1], field[2], field[3], field[4]
    if base + at + len <= tvb:len() then
      local range = tvb(base + at, len)
      if show == "Text" then
        local text = range:string(ENC_UTF_8):gsub("%z.*", "")
        tree:add(fields[name], range, text)
        values[name] = text
      elseif show == "Bytes" then
        tree:add(fields[name], range)
        values[name] = range:bytes():tohex()
      else
        local value = read(tvb, base, field)
        values[name] = value
        if show == "Flag" then
          tree:add(fields[name], range, value ~= 0)
        else
          local item = tree:add_le(fields[name], range)
          if show == "Rights" then
            local rights = {}
            for bit, right in pairs(wire.values.Rights) do
              if math.floor(value / bit) % 2 == 1 then rights[#rights + 1] = right end
            end
            table.sort(rights)
            item:append_text(" (" .. table.concat(rights, ", ") .. ")")
          end
        end
      end
    end
  end
  return values
end

-- Adds node ids of 2 bytes from `from` to before `to`; false if they do not ascend.
local function add_members(tree, tvb, from, to)
  local last, ascending = -1, true
  for at = from, math.min(to, tvb:len()) - 2, 2 do
    tree:add_le(fields.member, tvb(at, 2))
    local node = tvb(at, 2):le_uint()
    ascending = ascending and node > last
    last = node
  end
  return ascending
end

-- What is wrong with a store or load of a word, if anything.
local function wrong_word(size, offset)
  if size ~= 1 and size ~= 2 and size ~= 4 and size ~= 8 then
    return "access size " .. size .. ": expected 1, 2, 4 or 8"
  end
  if offset % size ~= 0 or offset + size > wire.UNIT then
    return "offset " .. hex(offset) .. ": expected an aligned access within one unit"
  end
end

-- Adds the stores of a burst, of which there are `length` bytes; returns what is wrong with them, if anything.
local function burst(tree, tvb, at, length)
  if length == 0 or length % wire.STORE_LEN ~= 0 or length > wire.MAX_BURST * wire.STORE_LEN then
    return "burst of " .. length .. " bytes: expected 1 to " .. wire.MAX_BURST .. " stores of " .. wire.STORE_LEN
  end
  local wrong
  for from = at, at + length - wire.STORE_LEN, wire.STORE_LEN do
    local data, offset, size = tvb(from, 8):le_uint64(), tvb(from + 8, 2):le_uint(), tvb(from + 10, 1):le_uint()
    tree:add(tvb(from, wire.STORE_LEN), "Store: " .. hex(offset) .. " " .. size .. " bytes = 0x" .. data:tohex())
    wrong = wrong or wrong_word(size, offset)
  end
  return wrong
end

-- What is wrong with the access that a packet asks for, if anything.
local function wrong_access(kind, values, block)
  local size, offset = values.size, values.offset
  if kind.check == "Access" or kind.check == "Word" then
    local wrong = wrong_word(size, offset)
    if wrong then return wrong end
    if kind.check == "Word" and size < 4 then return "access size " .. size .. ": expected 4 or 8" end
  elseif kind.check == "Block" then
    if block == 0 or block > wire.MAX_BLOCK or offset + block > wire.UNIT then
      return "block of " .. block .. " bytes at " .. hex(offset) .. ": expected 1 to " .. wire.MAX_BLOCK .. " within one unit"
    end
  end
  if values.tags and not values.tags:find("[^0]") then
    return "acknowledgement of no request: expected at least one tag"
  end
  if values.operation and not wire.values.Atomic[values.operation] then
    return "atomic operation " .. values.operation .. " is unknown"
  end
end

-- One line for people: `Write page 3+0x40 8 bytes = 0x2a`.
local function summary(kind, values)
  local text = title(kind.name)
  if values.operation then
    text = text .. " " .. (wire.values.Atomic[values.operation] or tostring(values.operation)):lower()
  end
  if values.name then text = text .. " \"" .. values.name .. "\"" end
  if values.status and values.status ~= 0 then
    return text .. ": " .. (wire.values.Status[values.status] or ("status " .. values.status))
  end
  if values.page then
    text = text .. " page " .. values.page
    if values.offset then text = text .. "+" .. hex(values.offset) end
  end
  if values.size or values.length then text = text .. " " .. (values.size or values.length) .. " bytes" end
  if values.data then text = text .. " = " .. hex(values.data) end
  if values.operand then text = text .. " " .. hex(values.operand) end
  if values.to then text = text .. " to " .. node_name(values.to) end
  return text
end

-- Ties a reply to its request: the same link, the same two nodes the other way round, the same tag.
local function match(tree, pinfo, kind, values)
  local link = interface_name()
  local key = function(from, to) return table.concat({ tostring(link), from, to, values.tag, tostring(values.incarnation) }, "/") end
  local number = pinfo.number
  if kind.class ~= wire.REPLY then
    if not pinfo.visited then waiting[key(values.src, values.dst)] = { number, pinfo.rel_ts } end
    if answers[number] then tree:add(fields.response_in, answers[number]):set_generated() end
    return
  end
  if not pinfo.visited then
    local one, all = key(values.dst, values.src), key(values.dst, wire.MULTICAST)
    local request = waiting[one] or waiting[all]
    waiting[one] = nil
    if request then
      questions[number] = request
      answers[request[1]] = answers[request[1]] or number
    end
  end
  local request = questions[number]
  if request then
    tree:add(fields.request_in, request[1]):set_generated()
    -- Captured in microseconds, given as a fraction of seconds.
    local passed = math.floor((pinfo.rel_ts - request[2]) * 1e6 + 0.5)
    tree:add(fields.response_time, NSTime.new(math.floor(passed / 1e6), passed % 1e6 * 1000)):set_generated()
  end
end

-- The packet in the bytes from `at` to before `to`, of which `tvb` may have fewer. Returns its line, and what is wrong with it.
local function packet(tvb, at, to, tree, pinfo)
  local there = math.min(to, tvb:len())
  if to - at < wire.HEADER_LEN then
    return "Packet", "packet of " .. (to - at) .. " bytes: expected at least " .. wire.HEADER_LEN
  end
  if there - at < wire.HEADER_LEN then return "Packet (cut)" end
  local version, number = tvb(at, 1):le_uint(), tvb(at + 1, 1):le_uint()
  local kind = wire.packets[number]
  local name = kind and kind.name or ("unknown " .. hex(number))
  local branch = tree:add(proto, tvb(at, there - at), "Packet: " .. name)
  local values = add(branch, tvb, at, wire.header)
  pinfo.cols.src = node_name(values.src)
  pinfo.cols.dst = node_name(values.dst)
  if version ~= wire.PROTOCOL_VERSION then
    return "Packet of version " .. version, "packet version " .. version .. ": expected " .. wire.PROTOCOL_VERSION
  end
  if not kind then return "Packet of kind " .. hex(number), "packet kind " .. hex(number) .. " is unknown" end
  branch:add(fields.class, kind.class):set_generated()
  if kind.class ~= wire.REPLY then add(branch, tvb, at, wire.target) end
  for key, value in pairs(add(branch, tvb, at, kind.fields)) do values[key] = value end
  local text = summary(kind, values)
  branch:add(fields.operation_name, kind.name):set_generated()
  local block, length = 0, kind.len
  if kind.tail == "Block" then
    block = math.min(values.length, wire.MAX_BLOCK)
    length = length + block
    if there > at + kind.len then branch:add(fields.block, tvb(at + kind.len, there - at - kind.len)) end
  elseif kind.check == "Block" then
    block = values.length
  end
  text = text .. "  (" .. values.src .. " > " .. values.dst .. ", tag " .. values.tag .. ")"
  if to - at ~= length then return text, "packet of " .. (to - at) .. " bytes: its kind takes " .. length end
  if there < to then return text end
  local wrong = wrong_access(kind, values, block)
  if kind.check == "Burst" then wrong = burst(branch, tvb, at + kind.len, block) end
  if wrong then return text, wrong end
  if values.status and values.status ~= 0 then branch:add_proto_expert_info(refused, wire.values.Status[values.status] or "?") end
  match(branch, pinfo, kind, values)
  return text
end

-- The frame whose head has been read. Returns its line, and what is wrong with it.
local function frame(tvb, total, kind, tree, pinfo)
  local at = wire.HEAD_LEN
  local length = total - at
  local values = add(tree, tvb, at, kind.fields)
  local text = title(kind.name)
  if kind.tail == "Packet" then return packet(tvb, at, total, tree, pinfo) end
  if kind.tail == "None" and length ~= kind.len then
    return text, "frame of " .. total .. " bytes: its kind takes " .. (at + kind.len)
  end
  if length < kind.len then
    return text, "frame of " .. total .. " bytes: its kind takes " .. (at + kind.len) .. " or more"
  end
  if tvb:len() < at + kind.len then return text .. " (cut)" end
  if values.class and not wire.values.Class[values.class] then
    return text, "class " .. values.class .. ": expected below " .. #wire.values.Class + 1
  end
  if values.layer and values.layer >= wire.MAX_LAYERS then
    return text, "layer " .. values.layer .. ": expected below " .. wire.MAX_LAYERS
  end
  if values.ring_side and values.ring_side >= wire.RING_SIDES then
    return text, "ring side " .. values.ring_side .. ": expected below " .. wire.RING_SIDES
  end
  if values.class then
    text = text .. " " .. values.count .. " " .. wire.values.Class[values.class]:lower()
  end
  if values.layer then text = text .. " layer " .. values.layer end
  if values.node then text = text .. " " .. node_name(values.node) end
  if values.switch then text = text .. " switch " .. values.switch .. " to " .. values.peer .. " epoch " .. values.epoch end
  if values.page then text = text .. " page " .. values.page end
  if values.incarnation then text = text .. " incarnation " .. hex(values.incarnation) end
  if values.reason then
    text = text .. " " .. (wire.values.Refusal[values.reason] or values.reason) .. ": " .. tostring(values.offered) ..
      ", expected " .. tostring(values.expected)
  end
  if kind.tail == "Members" then
    local bytes = length - kind.len
    if bytes % 2 ~= 0 or bytes > 2 * wire.MAX_MEMBERS then
      return text, "list of " .. bytes .. " bytes: expected 2 each for at most " .. wire.MAX_MEMBERS .. " nodes"
    end
    local ascending = add_members(tree, tvb, at + kind.len, total)
    text = text .. " of " .. bytes / 2
    if not ascending then return text, "nodes that do not ascend" end
  elseif kind.tail == "MembersAndPacket" then
    local list_end = at + kind.len + 2 * values.count
    if values.count > wire.MAX_MEMBERS or list_end > total then
      return text, "list of " .. values.count .. " nodes: expected at most " .. wire.MAX_MEMBERS .. ", within the frame"
    end
    local ascending = add_members(tree, tvb, at + kind.len, list_end)
    local inner, wrong = packet(tvb, list_end, total, tree, pinfo)
    text = inner .. "  layer " .. values.layer
    if values.count > 0 then text = text .. " for " .. values.count .. " nodes" end
    if not ascending then return text, "nodes that do not ascend" end
    return text, wrong
  end
  return text
end

-- What is no frame: an event or action of the switch that was captured.
local function record(tvb, kind, tree)
  local at = wire.HEAD_LEN
  local values = add(tree, tvb, at, kind.fields)
  local text = "[" .. title(kind.name) .. "]"
  if tvb:len() < at + kind.len then return text, "record of " .. tvb:len() .. " bytes: expected " .. (at + kind.len) end
  if values.port then text = text .. " port " .. values.port end
  if values.trunk then text = text .. " trunk " .. values.trunk end
  if values.room then text = text .. (values.room == 4294967295 and " unlimited room" or (" room " .. values.room)) end
  if values.missing then text = text .. " " .. tostring(values.missing) .. " records missing" end
  if tvb:len() > at + kind.len then
    local rest = tvb(at + kind.len)
    if kind.tail == "Text" then
      local said = rest:string(ENC_UTF_8)
      tree:add(fields.text, rest, said)
      text = text .. " " .. said
    elseif kind.tail == "Bytes" then
      tree:add(fields.bytes, rest)
    else
      return text, "record of " .. tvb:len() .. " bytes: expected " .. (at + kind.len)
    end
  end
  return text
end

function proto.dissector(tvb, pinfo, tree)
  local captured, reported = tvb:len(), tvb:reported_len()
  pinfo.cols.protocol = "Telegraphos"
  local root = tree:add(proto, tvb(), "Telegraphos")
  local text, wrong = "Frame", nil
  if reported < wire.HEAD_LEN then
    wrong = "frame of " .. reported .. " bytes: expected at least " .. wire.HEAD_LEN
  elseif captured >= wire.HEAD_LEN then
    local total, number, version = tvb(0, 4):le_uint(), tvb(4, 1):le_uint(), tvb(5, 1):le_uint()
    local kind = wire.frames[number] or wire.records[number]
    root:append_text(": " .. (kind and kind.name or ("unknown kind " .. number)))
    add(root, tvb, 0, wire.head)
    if kind and kind.tail ~= "Packet" and kind.tail ~= "MembersAndPacket" then
      root:add(fields.operation_name, kind.name):set_generated()
    end
    text = kind and title(kind.name) or ("Frame of kind " .. number)
    if total ~= reported then
      wrong = "frame says that it has " .. total .. " bytes, and has " .. reported
    elseif wire.records[number] then
      text, wrong = record(tvb, kind, root)
    elseif total > wire.MAX_LEN then
      wrong = "frame of " .. total .. " bytes: expected at most " .. wire.MAX_LEN
    elseif version ~= wire.PROTOCOL_VERSION and number ~= wire.HELLO and number ~= wire.TRUNK then
      wrong = "frame version " .. version .. ": expected " .. wire.PROTOCOL_VERSION
    elseif not kind then
      wrong = "frame kind " .. number .. " is unknown"
    else
      text, wrong = frame(tvb, total, kind, root, pinfo)
    end
  end
  if captured < reported then root:add_proto_expert_info(cut) end
  if wrong then
    root:add_proto_expert_info(malformed, wrong)
    text = text .. " [malformed: " .. wrong .. "]"
  end
  pinfo.cols.info = text
end

DissectorTable.get("wtap_encap"):add(wtap.USER0, proto)
