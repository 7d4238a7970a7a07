-- Several keys at one moment: all are looked at first, then all are charged, or none. For each key
-- there are a header, a context and the demand's two operands.
local entries, answers, passes = {}, {}, true
for i, key in ipairs(KEYS) do
  local e = open(key, ARGV[4 * i - 3], ARGV[4 * i - 2])
  if e.needs then
    return window_needed(e.needs)
  end
  entries[i] = e
end
for i, e in ipairs(entries) do
  local x, y = ARGV[4 * i - 1], tonumber(ARGV[4 * i])
  e.op = sub(ARGV[4 * i - 2], 1, 1)
  if e.op ~= 'q' then
    x = tonumber(x)
  end
  e.x, e.y = x, y
  e.answer, e.verdict = decide(e, cost_of(e.op, x, y), e.a.assess, x, y)
  if not has(e.flags, watches) then
    e.answer, e.verdict = punish(e, e.op, x, e.answer, e.verdict)
    passes = passes and e.verdict == 0
  end
end
for i, e in ipairs(entries) do
  local lease
  if passes and e.verdict == 0 then
    lease = charge(e, e.op, e.x, e.y)
  end
  close(e)
  answers[i] = e.answer .. told_lease(lease)
end
return answers
