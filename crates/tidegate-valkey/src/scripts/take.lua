-- Takes what is demanded of one key, or asks for it.
local function take(e, op, x, y)
  local answer, verdict = judge(e, op, x, y)
  if verdict == 0 and not has(e.flags, peeks) then
    return answer .. charge(e, op, x, y)
  end
  return answer
end
