"""Asks the service with redis-py: `redis_py.py PORT SECRET`. Fails on the first wrong answer."""

import sys

import redis

port, secret = int(sys.argv[1]), sys.argv[2]

for protocol in (2, 3):
    client = redis.Redis(port=port, password=secret, protocol=protocol, client_name="tester")
    assert client.ping()
    assert client.client_getname() in ("tester", b"tester")
    assert client.info()["loading"] == 0
    assert client.echo("hello") == b"hello"

    key = f"python-{protocol}"
    answer = client.execute_command("CL.THROTTLE", key, 15, 30, 60, 1)
    assert answer == [0, 16, 15, -1, 2], answer

    with client.pipeline(transaction=False) as pipe:
        for _ in range(7):
            pipe.execute_command("TG.TAKE", "rate", key)
        answers = pipe.execute()
    assert [answer[0] for answer in answers] == [1, 1, 1, 1, 1, 0, 0], answers
    assert answers[5][3] > 3_590_000 and answers[5][6] == b"limited", answers[5]

    lease = client.execute_command("TG.ACQUIRE", "jobs", key, 30000)
    assert lease[0] == 1 and len(lease[1]) == 32, lease
    assert client.execute_command("TG.RENEW", "jobs", key, lease[1])[:2] == [1, lease[2]]
    assert client.execute_command("TG.RELEASE", "jobs", key, lease[1]) == 1
    explained = client.execute_command("TG.EXPLAIN", "rate", key)
    if protocol == 2:
        explained = dict(zip(explained[::2], explained[1::2]))
    assert explained[b"remaining"] == 0 and explained[b"worst_case"] == 9, explained

    try:
        client.execute_command("TG.TAKE", "none", key)
        raise AssertionError("a limit that is not there has decided")
    except redis.ResponseError as error:
        assert "there is no limit 'none'" in str(error), error

try:
    redis.Redis(port=port, password="wrong").ping()
    raise AssertionError("a wrong secret was let in")
except redis.AuthenticationError:
    pass

print("all as it should be")
