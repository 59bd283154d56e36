"""safetensors files in plain Python, for tests: dicts of name -> (dtype, shape, list of numbers)."""
import json
import struct

_FORMATS = {"F32": "f", "F16": "e", "I64": "q", "U8": "B"}


def _pack(dtype, values):
    if dtype == "BF16":
        bits = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
        return struct.pack(f"<{len(values)}H", *((b + 0x7FFF + ((b >> 16) & 1)) >> 16 for b in bits))
    return struct.pack(f"<{len(values)}{_FORMATS[dtype]}", *values)


def _unpack(dtype, data):
    if dtype == "BF16":
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        return list(struct.unpack(f"<{len(halves)}f", struct.pack(f"<{len(halves)}I", *(h << 16 for h in halves))))
    code = _FORMATS[dtype]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))


def write(path, tensors):
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, (dtype, shape, values) in tensors.items():
        blob = _pack(dtype, values)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: (entry["dtype"], entry["shape"],
               _unpack(entry["dtype"], data[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]]))
        for name, entry in header.items()
    }
