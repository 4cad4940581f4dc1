// Package signature verifies the sender of a request, over the raw body and
// before anything is parsed: an unsigned body reaches no decoder, log or Kafka.
//
// It owns the schemes and their headers. It is pure: it imports the standard library
// and a JSON decoder, and reads no clock, file or environment.
//
// # Schemes
//
// StandardWebhooks: HMAC-SHA256 over webhook-id "." webhook-timestamp "." body;
// the key is the base64 part of a whsec_ secret. webhook-signature is a list of
// "v1," base64, separated by spaces; other versions (v1a is asymmetric) are
// ignored. Standard Webhooks 1.0.0, "Signature scheme" and "Verifying signatures":
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
//
// GitHub: X-Hub-Signature-256 is "sha256=" and the hexadecimal HMAC-SHA256 of
// the body. "Validating webhook deliveries":
// https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
//
// Stripe: Stripe-Signature is "t=" seconds ",v1=" hex, with one v1 per secret
// during a rotation; HMAC-SHA256 over t "." body. The key is the secret as Stripe
// shows it, with whsec_. Other schemes than v1 are ignored, against downgrades.
// "Verify webhook signatures manually":
// https://docs.stripe.com/webhooks#verify-manually
//
// Slack: X-Slack-Signature is "v0=" and the hexadecimal HMAC-SHA256 of "v0:"
// X-Slack-Request-Timestamp ":" body. "Verifying requests from Slack":
// https://docs.slack.dev/authentication/verifying-requests-from-slack
//
// The rules of the other providers, and their addresses: rules.Providers. Adyen's
// signature is in the body, which is decoded first. PayPal's certificate is part of
// the secret and never fetched.
//
// HMAC: other senders that sign the body, or timestamp, separator and body, with
// HMAC (RFC 2104); Config describes how.
//
// Token: a header, or a parameter of the URL, with the secret itself.
//
// Bearer: Authorization: Bearer and the secret itself (RFC 6750, section 2.1). It
// proves knowledge of the secret, and nothing about the body.
//
// None accepts every request.
//
// # Invariants
//
// A request with a signed timestamp (Config.timed) is valid from Config.Ahead before to Config.Tolerance after
// that time; a later replay is stale. An earlier one is genuine, like a sender's
// retry, and is a duplicate if the route's window is at least that span. If twice
// the tolerance is longer than the window, the caller lowers Ahead.
//
// The others sign no time: a replay after the window is a new event.
//
// A list with one good signature is valid, whatever its other entries are.
//
// Always refused: a repeated header, because two readers could use different
// values; an incomplete signature, which is easier to guess; an empty secret,
// with which anyone can sign. CheckSecret also refuses a short one.
package signature
