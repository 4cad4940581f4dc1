// Prints one signed webhook of each provider whose own SDK is in JavaScript, as sign.py does of the others.
// An SDK that only verifies has to accept what was made by the rule. No secret here is or was in use.

import { createHmac } from 'node:crypto'

const now = Number(process.argv[2]) || Math.floor(Date.now() / 1000)
const isNow = now > Date.now() / 1000 - 50
const secret = 'a-secret-of-the-tests-0123456789'
const requests = []

// The members are those of sign.py.
function add (provider, maker, headers, body, more = {}) {
  headers = { 'Content-Type': 'application/json', ...headers }
  requests.push({ provider, maker, secret, at: now, headers, query: '', body, unsigned: '', changed: ['first', 'other'], ...more })
}

function check (accepted, what) {
  if (!accepted) throw new Error(`${what} refuses a request`)
}

const mac = (text) => createHmac('sha256', secret).update(text)

async function github () {
  const { sign, verify } = await import('@octokit/webhooks-methods')
  const body = '{"zen":"first \u20ac","hook_id":1}'
  const signature = await sign(secret, body)
  check(await verify(secret, body, signature), 'octokit')
  add('github', '@octokit/webhooks-methods', {
    'X-Hub-Signature-256': signature, 'X-GitHub-Event': 'push', 'X-GitHub-Delivery': '72d3162e-cc78-11e3-81ab-4c9367dc0958'
  }, body, { unsigned: 'X-GitHub-Delivery' })
}

async function shopify () {
  await import('@shopify/shopify-api/adapters/web-api')
  const { shopifyApi, ApiVersion, LogSeverity } = await import('@shopify/shopify-api')
  const api = shopifyApi({
    apiKey: 'key', apiSecretKey: secret, hostName: 'hooks.example.com', apiVersion: Object.values(ApiVersion)[0], isEmbeddedApp: false,
    logger: { level: LogSeverity.Error }
  })
  const body = '{"id":820982911946154508,"note":"first"}'
  const headers = {
    'X-Shopify-Hmac-Sha256': mac(body).digest('base64'), 'X-Shopify-Topic': 'orders/create', 'X-Shopify-Shop-Domain': 'shop.example.com',
    'X-Shopify-API-Version': '2026-01', 'X-Shopify-Webhook-Id': 'b54557e4-bdd9-4b37-8a5f-bf7d70bcd043'
  }
  const result = await api.webhooks.validate({ rawBody: body, rawRequest: new Request('https://hooks.example.com/', { method: 'POST', headers, body }) })
  check(result.valid, `shopify-api (${result.reason})`)
  add('shopify', '@shopify/shopify-api', headers, body, { unsigned: 'X-Shopify-Webhook-Id' })
}

async function linear () {
  const { LinearWebhookClient } = await import('@linear/sdk/webhooks')
  const body = JSON.stringify({ action: 'create', type: 'Comment', data: { id: 'first' }, webhookTimestamp: now * 1000 })
  const signature = mac(body).digest('hex')
  if (isNow) check(new LinearWebhookClient(secret).verify(Buffer.from(body), signature), 'linear')
  add('linear', '@linear/sdk', { 'Linear-Signature': signature, 'Linear-Delivery': '234d1a4e-b617-4388-90fe-adc3633d6b72' }, body, { unsigned: 'Linear-Delivery' })
}

async function zoom () {
  const { AwsLambdaReceiver } = await import('@zoom/rivet/users')
  const receiver = new AwsLambdaReceiver({ webhooksSecretToken: secret })
  console.debug = () => {} // the receiver writes each request to the standard output
  const send = async (content, more) => {
    const body = JSON.stringify(content)
    const headers = {
      'x-zm-request-timestamp': String(now), 'x-zm-trackingid': 'track-1', 'x-zm-signature': `v0=${mac(`v0:${now}:${body}`).digest('hex')}`
    }
    const answer = await receiver.start()({ body, headers, isBase64Encoded: false }, {})
    check(answer.statusCode === 200, 'rivet')
    add('zoom', '@zoom/rivet', headers, body, more(answer))
  }
  await send({ event: 'meeting.started', event_ts: now * 1000, payload: { object: { topic: 'first' } } }, () => ({ unsigned: 'x-zm-trackingid' }))
  await send({ event: 'endpoint.url_validation', event_ts: now * 1000, payload: { plainToken: 'qgg8vlvZRS6UYooatFL8Aw' } },
    (answer) => ({ changed: ['qgg8', 'qgg9'], handshake: { status: answer.statusCode, body: answer.body } }))
}

for (const make of [github, shopify, linear, zoom]) await make()
console.log(JSON.stringify(requests, null, 1))
