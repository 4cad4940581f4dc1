// Package signature verifies who sent a request, over its raw body and before
// anything of it is parsed: a body that is not signed reaches no decoder, no
// log and no bus. It is pure: it reads no clock, no file and no environment.
//
// # Schemes
//
// StandardWebhooks: HMAC-SHA256 over webhook-id "." webhook-timestamp "." body
// with the base64 part of a whsec_ secret as key; webhook-signature is a list
// of "v1," base64, separated by spaces. Other versions (v1a is asymmetric) are
// passed over. Standard Webhooks 1.0.0, "Signature scheme" and "Verifying
// signatures":
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
//
// GitHub: X-Hub-Signature-256 is "sha256=" and the hexadecimal HMAC-SHA256 of
// the body. "Validating webhook deliveries":
// https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
//
// Stripe: Stripe-Signature is "t=" seconds ",v1=" hex, with a further v1 per
// secret while one is rolled; HMAC-SHA256 over t "." body. The key is the
// secret as it is shown, whsec_ included. Other schemes than v1 are passed
// over, against downgrades. "Verify webhook signatures manually":
// https://docs.stripe.com/webhooks#verify-manually
//
// Slack: X-Slack-Signature is "v0=" and the hexadecimal HMAC-SHA256 of "v0:"
// X-Slack-Request-Timestamp ":" body. "Verifying requests from Slack":
// https://docs.slack.dev/authentication/verifying-requests-from-slack
//
// HMAC: any other sender that signs the body, or a timestamp, a separator and
// the body, with HMAC (RFC 2104); Config says how.
//
// Bearer: Authorization: Bearer and the secret itself (RFC 6750 section 2.1).
// It proves that the sender knows the secret, and nothing about the body.
//
// None: every request is accepted.
//
// # Replays
//
// A captured request that is sent again later than the tolerance is refused as
// stale where the signature covers a timestamp: StandardWebhooks, Stripe, Slack
// and HMAC with a timestamp header. Within the tolerance it is genuine, as a
// retry of the sender would be, and it is the deduplicator that lets it through
// once. A request is good from Config.Ahead before its timestamp to
// Config.Tolerance after it: that span must be no longer than the window of a
// route, so where twice the tolerance is, less is allowed ahead of the clock.
// GitHub, HMAC without a timestamp, Bearer and None have no notion of age. With
// them a replay is the deduplicator's alone, and past the window it counts as
// new.
//
// # What is always refused
//
// A header that comes twice, as two readers might take a different one for the
// signature; a signature that is not whole, as a shorter one is easier to
// guess; a secret that is empty, as anybody can sign with it.
package signature
