-- Values of keys. One lives for whole milliseconds, counted from the one that `now` is in.
local function read(key)
  return redis.call('GET', key)
end

local function write(key, value, micros)
  if micros == math.huge then
    redis.call('SET', key, value)
  else
    redis.call('SET', key, value, 'PX', math.ceil((now % 1000 + micros) / 1000))
  end
end

local function forget(key)
  redis.call('DEL', key)
end
