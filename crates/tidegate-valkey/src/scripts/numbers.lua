-- Whole numbers in doubles: exact up to 2^53, and exact beyond where a product would pass it.
local floor, fmod, min, max = math.floor, math.fmod, math.min, math.max
local byte, sub, upper = string.byte, string.sub, string.upper
local pack, unpack_from = struct.pack, struct.unpack
local never = math.huge
local two_26, two_53, u32_max = 67108864, 9007199254740992, 4294967295

-- The greatest whole number not above a / b, and the rest. A division alone may round up.
local function divide(a, b)
  local rest = fmod(a, b)
  return (a - rest) / b, rest
end

local function divide_up(a, b)
  local rest = fmod(a, b)
  local quotient = (a - rest) / b
  if rest > 0 then
    return quotient + 1
  end
  return quotient
end

-- (a * b + add) / c and the rest, for a, b, c and add below 2^52; the quotient is infinite from
-- 2^53 on. The double nearest to the quotient is off by little, and how much is what remains of
-- the products, taken apart into halves of 26 bits.
local function multiply_divide(a, b, c, add)
  local product = a * b + add
  if product < two_53 then
    return divide(product, c)
  end
  local quotient = floor(product / c)
  if quotient > two_53 then
    return never, 0
  end
  local a0, b0, c0, q0 = fmod(a, two_26), fmod(b, two_26), fmod(c, two_26), fmod(quotient, two_26)
  local a1, b1 = (a - a0) / two_26, (b - b0) / two_26
  local c1, q1 = (c - c0) / two_26, (quotient - q0) / two_26
  local middle = ((a1 * b1 - q1 * c1) * two_26 + (a1 * b0 - q1 * c0)) + (a0 * b1 - q0 * c1)
  local off = middle * two_26 + (a0 * b0 - q0 * c0 + add)
  local rest = fmod(off, c)
  if rest < 0 then
    rest = rest + c
  end
  quotient = quotient + (off - rest) / c
  if quotient >= two_53 then
    return never, 0
  end
  return quotient, rest
end

-- A wait has a number up to 2^53 - 1 microseconds; beyond, it is never.
local function longer(wait, by)
  local sum = wait + by
  if sum >= two_53 then
    return never
  end
  return sum
end

-- Units in use after a change of a limit that counts whole ones.
local function change_used(mode, used, old, new)
  if used == 0 then
    -- It equals a key that was never seen, which may have been forgotten.
    return 0
  elseif mode == 0 then
    return used
  elseif mode == 1 then
    if old == 0 then
      return used
    end
    local share, rest = multiply_divide(used, new, old, 0)
    if rest > 0 then
      share = share + 1
    end
    return min(share, u32_max)
  elseif mode == 2 then
    return new - min(max(old - used, 0), new)
  end
  return 0
end

-- Algorithms by the letters that the headers of their states begin with, and the lengths of those.
local algorithms, header_sizes = {}, {}
