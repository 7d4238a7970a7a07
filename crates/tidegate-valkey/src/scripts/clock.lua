-- The server's clock is everyone's: no caller's time can empty a window for all.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
