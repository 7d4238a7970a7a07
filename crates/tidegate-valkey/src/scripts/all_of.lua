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
  e.answer, e.verdict = judge(e, e.op, x, y)
  passes = passes and (e.verdict == 0 or has(e.flags, watches))
end
for i, e in ipairs(entries) do
  if passes and e.verdict == 0 then
    e.answer = e.answer .. charge(e, e.op, e.x, e.y)
  end
  close(e)
  answers[i] = e.answer
end
return answers
