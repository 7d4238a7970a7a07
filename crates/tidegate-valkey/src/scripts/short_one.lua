-- A short way to the same answer for the usual call: with no functions to be made, and no change,
-- block or step of the clock to be minded. What is not usual goes on below.
local demand, _, asked = string.byte(ARGV[2], 1, 3)
if demand == 116 and asked < 50 then
  local key, header, cost = KEYS[1], ARGV[1], tonumber(ARGV[3])
  -- What the short way finds: the verdict is nil where it does not lead to an answer.
  local verdict, limit, remaining, reset, fresh, state
  local n, retry, delay = now, 0, 0
  SHORT()
  if verdict and n - now <= 1000000 then
    local lag = n - now
    if verdict == 0 and cost > 0 and asked == 48 then
      state = header .. state
      local micros = fresh + lag + 1000000
      WRITE(key, state, micros)
    end
    delay = delay > 0 and delay + lag or 0
    retry = retry > 0 and retry + lag or 0
    reset = reset > 0 and reset + lag or 0
    local form = '>BI4I4I4i7i7i7I7'
    return struct.pack(form, verdict, limit, remaining, cost, delay, retry, reset, n)
  end
end
