-- Values of keys, and how long they live.
local function read(key)
  return redis.call('GET', key)
end

-- The bytes from `first` to `last`, counted from 0; empty where there is nothing.
local function read_range(key, first, last)
  return redis.call('GETRANGE', key, first, last)
end

-- Whole milliseconds for a key to live at least `micros`: the server counts from the millisecond
-- that `now` is in.
local function lifetime(micros)
  return math.ceil((now % 1000 + micros) / 1000)
end

local function write(key, value, micros)
  if micros == math.huge then
    redis.call('SET', key, value)
  else
    redis.call('SET', key, value, 'PX', lifetime(micros))
  end
end

-- Overwrites parts of a long value in place: pairs of an offset and bytes.
local function write_parts(key, parts, micros)
  for i = 1, #parts, 2 do
    redis.call('SETRANGE', key, parts[i], parts[i + 1])
  end
  if micros == math.huge then
    redis.call('PERSIST', key)
  else
    redis.call('PEXPIRE', key, lifetime(micros))
  end
end

local function forget(key)
  redis.call('DEL', key)
end
