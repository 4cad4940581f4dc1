//go:build unix

package program

import (
	"os"
	"strings"
)

// Settings are those that every process of oncebus needs.
type Settings struct {
	Brokers  []string
	AppID    string
	Instance string
	Routes   string // path
	StateDir string
	// More are further ones, NAME=value without the prefix ONCEBUS_. A later one of the same name counts.
	More []string
}

// prefix begins the names of all settings of oncebus.
const prefix = "ONCEBUS_"

// Environ returns the settings as variables: also a free port of the loopback address for the HTTP server, and the log as JSON,
// which [Log] reads.
func (s Settings) Environ() []string {
	settings := []string{
		"BROKERS=" + strings.Join(s.Brokers, ","), "APP_ID=" + s.AppID, "INSTANCE_ID=" + s.Instance, "ROUTES=" + s.Routes,
		"STATE_DIR=" + s.StateDir, "ADMIN_ADDR=127.0.0.1:0", "LOG_FORMAT=json",
	}
	var env []string
	for _, setting := range append(settings, s.More...) {
		env = append(env, prefix+setting)
	}
	return env
}

// Inherited is this process's environment without settings of oncebus.
func Inherited() (env []string) {
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, prefix) {
			env = append(env, variable)
		}
	}
	return env
}

// Isolated is an environment with nothing of the machine but PATH.
func Isolated(home string) []string { return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home} }
