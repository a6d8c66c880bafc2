-- fingerprint: SHA-256 of task and trace, 16 hex digits, as core/values/fingerprint.py makes it.
local ROUNDS = {
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
  0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
  0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
  0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
  0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
  0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
  0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
  0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
}

local function sha256_start(text)
  local ror, xor, band, shr, bnot = bit.ror, bit.bxor, bit.band, bit.rshift, bit.bnot
  local h = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
  }
  local bits = #text * 8
  text = text .. '\128' .. string.rep('\0', (55 - #text) % 64) .. string.rep('\0', 4)
    .. string.char(
      math.floor(bits / 16777216) % 256, math.floor(bits / 65536) % 256, math.floor(bits / 256) % 256, bits % 256
    )
  for at = 1, #text, 64 do
    local w = {}
    for i = 0, 15 do
      local a, b, c, d = string.byte(text, at + i * 4, at + i * 4 + 3)
      w[i] = a * 16777216 + b * 65536 + c * 256 + d
    end
    for i = 16, 63 do
      local x, y = w[i - 15], w[i - 2]
      local s0 = xor(ror(x, 7), ror(x, 18), shr(x, 3))
      local s1 = xor(ror(y, 17), ror(y, 19), shr(y, 10))
      w[i] = (w[i - 16] + s0 + w[i - 7] + s1) % 4294967296
    end
    local a, b, c, d, e, f, g, k = unpack(h)
    for i = 0, 63 do
      local s1 = xor(ror(e, 6), ror(e, 11), ror(e, 25))
      local t1 = k + s1 + xor(band(e, f), band(bnot(e), g)) + ROUNDS[i + 1] + w[i]
      local s0 = xor(ror(a, 2), ror(a, 13), ror(a, 22))
      local t2 = s0 + xor(band(a, b), band(a, c), band(b, c))
      a, b, c, d, e, f, g, k = (t1 + t2) % 4294967296, a, b, c, (d + t1) % 4294967296, e, f, g
    end
    for i, part in ipairs({a, b, c, d, e, f, g, k}) do h[i] = (h[i] + part) % 4294967296 end
  end
  -- Two words in two halves each: a number above 2^31 may not go through %x.
  local hex = {}
  for i = 1, 2 do
    hex[#hex + 1] = string.format('%04x%04x', math.floor(h[i] / 65536), h[i] % 65536)
  end
  return table.concat(hex)
end

local function fingerprint(task, trace)
  return sha256_start(task .. trace)
end
