// Asks the service with iovalkey: `iovalkey.cjs MODULES PORT SECRET`. Fails on the first wrong answer.

const assert = require("node:assert/strict");
const [modules, port, password] = process.argv.slice(2);
const Redis = require(require.resolve("iovalkey", { paths: [modules] }));

async function main() {
  const client = new Redis({ port: Number(port), password, connectionName: "tester", maxRetriesPerRequest: 1 });
  assert.equal(await client.ping(), "PONG");
  assert.equal(await client.client("GETNAME"), "tester");

  assert.deepEqual(await client.call("CL.THROTTLE", "node", 15, 30, 60, 1), [0, 16, 15, -1, 2]);

  // The window of a user that many requests ask at once: exactly as many pass as the limit says.
  const asked = Array.from({ length: 1000 }, () => client.call("TG.TAKE", "dear", "node", 1));
  const answers = await Promise.all(asked);
  assert.equal(answers.filter((answer) => answer[0] === 1).length, 10);

  const pipeline = client.pipeline();
  for (let n = 0; n < 3; n++) pipeline.call("TG.PEEK", "dear", "node", 1);
  pipeline.call("TG.TAKE", "none", "node");
  const batch = await pipeline.exec();
  assert.deepEqual(batch.map(([error]) => Boolean(error)), [false, false, false, true]);
  assert.match(batch[3][0].message, /there is no limit 'none'/);

  const [granted, lease] = await client.call("TG.ACQUIRE", "jobs", "node", 30000);
  assert.equal(granted, 1);
  assert.equal(await client.call("TG.RELEASE", "jobs", "node", lease), 1);
  await client.quit();

  const wrong = new Redis({ port: Number(port), password: "wrong", retryStrategy: null, lazyConnect: true });
  wrong.on("error", () => {});
  await assert.rejects(wrong.connect().then(() => wrong.ping()), /WRONGPASS|NOAUTH|Connection is closed/);
  wrong.disconnect();
  console.log("all as it should be");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
