-- A short way to the same answer where all that is asked is usual: see the calls on one key. What
-- is not usual goes on below; nothing was written then.
do
  local short, form = {}, '>BI4I4I4i7i7i7I7'
  SHORTS()
  local answers, values, lives, passes = {}, {}, {}, true
  for i, key in ipairs(KEYS) do
    local header, context = ARGV[4 * i - 3], ARGV[4 * i - 2]
    local op, _, flags = string.byte(context, 1, 3)
    local judge = short[string.byte(header)]
    local cost = tonumber(ARGV[4 * i - 1])
    -- Not usual: other demands, and to punish a denial.
    if not judge or op ~= 116 or (flags ~= 48 and flags ~= 52) then
      answers = nil
      break
    end
    local verdict, limit, remaining, reset, fresh, state, n, retry, delay =
      judge(key, header, cost)
    if not verdict or n - now > 1000000 then
      answers = nil
      break
    end
    local lag = n - now
    if verdict == 0 and cost > 0 then
      values[i], lives[i] = header .. state, fresh + lag + 1000000
    elseif verdict ~= 0 and flags == 48 then
      passes = false
    end
    delay = delay > 0 and delay + lag or 0
    retry = retry > 0 and retry + lag or 0
    reset = reset > 0 and reset + lag or 0
    answers[i] = struct.pack(form, verdict, limit, remaining, cost, delay, retry, reset, n)
  end
  if answers then
    if passes then
      for i, key in ipairs(KEYS) do
        local state, micros = values[i], lives[i]
        if state then
          WRITE(key, state, micros)
        end
      end
    end
    return answers
  end
end
