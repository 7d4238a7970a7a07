-- Whole numbers of any size, as lists of digits to the base 2^24, lowest first. Only changes of
-- limits come here, so it is written to be short.
local big = {}
local base = 16777216

function big.of(number)
  local digits = {}
  while number > 0 do
    local digit = fmod(number, base)
    digits[#digits + 1] = digit
    number = (number - digit) / base
  end
  return digits
end

local function trimmed(digits)
  while digits[#digits] == 0 do
    digits[#digits] = nil
  end
  return digits
end

function big.add(a, b)
  local sum, carry = {}, 0
  for i = 1, max(#a, #b) + 1 do
    local digit = (a[i] or 0) + (b[i] or 0) + carry
    sum[i] = fmod(digit, base)
    carry = (digit - sum[i]) / base
  end
  return trimmed(sum)
end

function big.multiply(a, b)
  local product = {}
  for i = 1, #a + #b do
    product[i] = 0
  end
  for i = 1, #a do
    local carry = 0
    for j = 1, #b do
      local digit = product[i + j - 1] + a[i] * b[j] + carry
      product[i + j - 1] = fmod(digit, base)
      carry = (digit - product[i + j - 1]) / base
    end
    product[i + #b] = carry
  end
  return trimmed(product)
end

local function compare(a, b)
  if #a ~= #b then
    return #a - #b
  end
  for i = #a, 1, -1 do
    if a[i] ~= b[i] then
      return a[i] - b[i]
    end
  end
  return 0
end

-- a - b, which must not be negative.
local function subtract(a, b)
  local difference, borrow = {}, 0
  for i = 1, #a do
    local digit = a[i] - (b[i] or 0) - borrow
    borrow = digit < 0 and 1 or 0
    difference[i] = digit + borrow * base
  end
  return trimmed(difference)
end

-- Quotient and rest, one binary digit after the other.
function big.divide(a, b)
  local quotient, rest, two = {}, {}, { 2 }
  for i = #a, 1, -1 do
    local bits, digit = a[i], 0
    for power = 23, 0, -1 do
      local bit = 2 ^ power
      rest = big.multiply(rest, two)
      if bits >= bit then
        bits = bits - bit
        rest = big.add(rest, { 1 })
      end
      if compare(rest, b) >= 0 then
        rest = subtract(rest, b)
        digit = digit + bit
      end
    end
    quotient[i] = digit
  end
  return trimmed(quotient), rest
end

-- The number as a double: exact below 2^53, infinite from there on.
function big.number(digits)
  local number = 0
  for i = #digits, 1, -1 do
    number = number * base + digits[i]
  end
  if number >= two_53 then
    return never
  end
  return number
end
