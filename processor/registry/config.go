package registry

import (
	"errors"
	"net/url"
	"time"

	"oncebus/processor/security"
)

// Config says where schemas are. Its errors name a field by its environment variable, where the operator sets
// it.
type Config struct {
	// Dir is the directory of the schema files that routes name. A name such as ../x cannot lead out of the
	// directory.
	Dir string `env:"DIR" help:"directory of the schema files that routes name; default: that of the routes file"`
	// URLs are the addresses of the registry, each with its path; the client tries them in order. If there is
	// no address, the routes must not need a registry.
	URLs []string `env:"REGISTRY_URL" help:"addresses of the schema registry, comma separated, such as https://registry.example.com; required by routes with format: avro or protobuf without a schema file"`
	// Username and Password are for basic authentication, Token is a bearer token.
	Username     string          `env:"REGISTRY_USERNAME" help:"user name for the schema registry"`
	Password     security.Secret `env:"REGISTRY_PASSWORD" file:"PasswordFile" help:"password for the schema registry; a file is read again for every request"`
	PasswordFile security.SecretPath
	Token        security.Secret `env:"REGISTRY_TOKEN" file:"TokenFile" help:"bearer token for the schema registry; a file is read again for every request"`
	TokenFile    security.SecretPath
	// CAFile, CertFile and KeyFile mean the same as in security.TLS, for the registry.
	CAFile   string `env:"REGISTRY_CA_FILE" help:"PEM file of the authorities trusted to sign the registry's certificate; default: the system's"`
	CertFile string `env:"REGISTRY_CERT_FILE" help:"PEM file of the client certificate for the registry, with ONCEBUS_SCHEMA_REGISTRY_KEY_FILE"`
	KeyFile  string `env:"REGISTRY_KEY_FILE" help:"PEM file of that certificate's private key"`
	// Timeout is how long one request may take, 100ms to 5m.
	Timeout time.Duration `env:"REGISTRY_TIMEOUT" envDefault:"10s" help:"how long one request to the schema registry may take"`
	// UnknownAfter is for how long the registry must say that it has no schema of an id, before the records that
	// name the id become invalid: 0 to 24h. A replica of the registry may lag behind the producers.
	UnknownAfter time.Duration `env:"REGISTRY_UNKNOWN_AFTER" envDefault:"1m" help:"for how long the schema registry must say that it has no such schema, before records that name it are invalid; they wait meanwhile"`
}

// Limits of Config.
const (
	TimeoutMin      = 100 * time.Millisecond
	TimeoutMax      = 5 * time.Minute
	UnknownAfterMax = 24 * time.Hour
)

// Validate returns all mistakes of c, joined by errors.Join, or nil. It reads the certificate files, but opens
// no connection.
func (c *Config) Validate() error {
	var m security.Mistakes
	for _, address := range c.URLs {
		m.Add(c.validateURL(address))
	}
	basic, bearer := c.Username != "" || c.Password != "", c.Token != ""
	switch {
	case basic && bearer:
		m.Addf("ONCEBUS_SCHEMA_REGISTRY_TOKEN: set together with ONCEBUS_SCHEMA_REGISTRY_USERNAME or ONCEBUS_SCHEMA_REGISTRY_PASSWORD, want one way to authenticate")
	case basic && (c.Username == "" || c.Password == ""):
		m.Addf("ONCEBUS_SCHEMA_REGISTRY_USERNAME: set both it and ONCEBUS_SCHEMA_REGISTRY_PASSWORD, or neither")
	}
	if len(c.URLs) == 0 && (basic || bearer || c.CAFile != "" || c.CertFile != "" || c.KeyFile != "") {
		m.Addf("ONCEBUS_SCHEMA_REGISTRY_URL: not set, but other settings of the registry are")
	}
	if c.Timeout != 0 && (c.Timeout < TimeoutMin || c.Timeout > TimeoutMax) {
		m.Addf("ONCEBUS_SCHEMA_REGISTRY_TIMEOUT: %v is out of range, want %v to %v", c.Timeout, TimeoutMin, TimeoutMax)
	}
	if c.UnknownAfter < 0 || c.UnknownAfter > UnknownAfterMax {
		m.Addf("ONCEBUS_SCHEMA_REGISTRY_UNKNOWN_AFTER: %v is out of range, want 0 to %v", c.UnknownAfter, UnknownAfterMax)
	}
	_, err := c.certificates()
	m.Add(err)
	return m.Err()
}

// validateURL checks the form of an address. It permits a secret over plain http only to this machine.
func (c *Config) validateURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		// The parser's error would show the URL, which may contain a password.
		return errors.New("ONCEBUS_SCHEMA_REGISTRY_URL: malformed, want a URL such as https://registry.example.com")
	case u.User != nil:
		return errors.New("ONCEBUS_SCHEMA_REGISTRY_URL: contains a user or password, use ONCEBUS_SCHEMA_REGISTRY_USERNAME and ONCEBUS_SCHEMA_REGISTRY_PASSWORD")
	case u.Scheme == "http" && (c.Password != "" || c.Token != "") && !security.IsLoopback(u.Hostname()):
		return errors.New("ONCEBUS_SCHEMA_REGISTRY_URL: http would send the secret unencrypted, want https")
	}
	return nil
}

func (c *Config) certificates() (*security.Certificates, error) {
	const prefix = "ONCEBUS_SCHEMA_REGISTRY_"
	return security.LoadCertificates(security.File{Variable: prefix + "CERT_FILE", Path: c.CertFile},
		security.File{Variable: prefix + "KEY_FILE", Path: c.KeyFile}, security.File{Variable: prefix + "CA_FILE", Path: c.CAFile})
}
