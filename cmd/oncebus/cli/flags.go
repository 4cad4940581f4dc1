package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

const outputFlag = "output"

// The formats of --output.
const (
	formatText = "text"
	formatJSON = "json"
)

var formats = []string{formatText, formatJSON}

// OutputFlag defines -o, --output and the older name --json. It sets asJSON to true if the command should print
// JSON.
func OutputFlag(fs *pflag.FlagSet, asJSON *bool) {
	fs.VarP(format{asJSON}, outputFlag, "o", "`format` of what is printed: text or json")
	fs.BoolVar(asJSON, "json", false, "the same as --output json")
	// The flag --json stays because scripts use it. It is hidden because users need to know only one of the two
	// flags.
	fs.Lookup("json").Hidden = true
}

// format is the value of --output.
type format struct{ asJSON *bool }

// String implements pflag.Value.
func (f format) String() string {
	if f.asJSON != nil && *f.asJSON {
		return formatJSON
	}
	return formatText
}

// Set implements pflag.Value.
func (f format) Set(text string) error {
	if !slices.Contains(formats, text) {
		return fmt.Errorf("want %s", strings.Join(formats, " or "))
	}
	*f.asJSON = text == formatJSON
	return nil
}

// Type implements pflag.Value.
func (f format) Type() string { return "format" }

// RoutesFlag defines --routes.
func RoutesFlag(fs *pflag.FlagSet, path *string) {
	fs.StringVar(path, "routes", "", "the routes `file`; default: $ONCEBUS_ROUTES, or routes.yaml")
}
