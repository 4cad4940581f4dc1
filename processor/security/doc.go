// Package security makes the client options that every Kafka client starts from:
// TLS, SASL, tokens, and the redaction of secrets in logs and errors.
//
// # What it owns
//
//   - Config, TLS and SASL are the settings; Validate reports all mistakes at once.
//   - Secret prints as ***, however it is printed. A filter that knows the secrets
//     cleans the log lines and errors of libraries, brokers and token endpoints.
//   - Certificates and secrets in files are read again when they change. Content
//     that cannot be used leaves the last valid one in use.
//
// It may import package kafka of this module; of outside systems franz-go, HTTP
// for the token endpoint, files and metrics.
//
// # What looks wrong
//
//   - No setting turns off the verification of the broker's certificate.
//   - A credential that is refused while a process runs is retried for minutes:
//     broker and files do not change at the same moment.
//   - A connection that closes without a message is retried too, because a broker
//     that starts does the same.
package security
