-- The usual call on a log or a window of cells that is read at once: units of a key that is new,
-- or that was last seen under the same numbers and is not blocked. What a log consists of is told
-- below; that of a window counts time in cells.
local raw = READ_HEAD(key)
local unpack_from, fmod = struct.unpack, math.fmod
local size, head, sums = #raw, #header, 1099511627776
if cost > 0 and (size == 0 or (size < 2048 and string.sub(raw, 1, head) == header)) then
  -- How long an event is in view, and the unit of its time.
  local view, unit
  if head == 18 then
    local cells
    limit, view, cells = unpack_from('>I4I7I2', header, 6)
    local rest = fmod(view, cells)
    unit = rest > 0 and (view - rest) / cells + 1 or view / cells
    rest = fmod(view, unit)
    view = rest > 0 and view - rest + 2 * unit or view + unit
  else
    unit, limit, view = 1, unpack_from('>I4I7', header, 6)
  end
  local shift, count, base, newest, total = 0, 0, 0, -1, 0
  if size > 0 then
    local last, _
    last, shift, _, count, base = unpack_from('>I7I7I4I4I5', raw, head + 1)
    n, total = last > now and last or now, base
  end
  -- Where the records are: the one before the first, which there is none of, begins here.
  local at = head + 16
  local moment = (n - fmod(n, unit)) / unit + shift
  local cutoff, gone = moment - view / unit, 0
  if count > 0 then
    newest, total = unpack_from('>i7I5', raw, at + count * 12)
    if newest <= cutoff then
      gone, base = count, total
    elseif unpack_from('>i7', raw, at + 12) <= cutoff then
      local high = count
      gone = 1
      while high - gone > 1 do
        local middle = math.floor((gone + high) / 2)
        if unpack_from('>i7', raw, at + middle * 12) > cutoff then
          high = middle
        else
          gone = middle
        end
      end
      base = unpack_from('>I5', raw, at + 7 + gone * 12)
    end
  end
  local used = (total - base) % sums
  local above = used + cost - limit
  if cost > limit or newest > moment then
    -- Not usual: what can never fit, and a record from beyond a corrected clock.
    verdict = nil
  elseif above <= 0 then
    -- Charges of one instant are one record.
    local last = newest == moment and count - 1 or count
    if gone == count then
      moment, shift = moment - shift, 0
    end
    local kept = string.sub(raw, at + 12 + gone * 12, at + 11 + last * 12)
    state = struct.pack('>I7I7I4I4I5', n, shift, 0, last - gone + 1, base)
      .. kept
      .. struct.pack('>i7I5', moment, (total + cost) % sums)
    reset = (moment - shift) * unit + view - n
    verdict, remaining, fresh = 0, -above, reset
  elseif gone < count then
    -- The first record with which so many units have left.
    local low, high = gone, count
    while high - low > 1 do
      local middle = math.floor((low + high) / 2)
      if (unpack_from('>I5', raw, at + 7 + middle * 12) - base) % sums >= above then
        high = middle
      else
        low = middle
      end
    end
    verdict, remaining = 1, used < limit and limit - used or 0
    retry = (unpack_from('>i7', raw, at + high * 12) - shift) * unit + view - n
    reset = (newest - shift) * unit + view - n
  end
end
