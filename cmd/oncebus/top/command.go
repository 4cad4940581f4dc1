package top

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/security"
)

// addressDefault is the default of ONCEBUS_ADMIN_ADDR.
const addressDefault = "127.0.0.1:8080"

// options are the flags of 'oncebus top'.
type options struct {
	addresses     []string
	tokenFile     string
	ca, cert, key string
	sort          string
	once, json    bool
}

// Command is 'oncebus top'.
func Command() cli.Command {
	var o options
	return cli.Command{
		Name: "top", Synopsis: "[OPTIONS]", About: "show what a process does, in a terminal",
		Long: "Shows the figures of the live page of a process in a terminal: events, duplicates, lag, tasks,\n" +
			"restores, commit times, disk, warnings. The address is that of ONCEBUS_ADMIN_ADDR, the token that of\n" +
			"ONCEBUS_ADMIN_TOKEN or ONCEBUS_ADMIN_TOKEN_FILE. With --once, with --output json, or if the output is\n" +
			"no terminal, it prints one snapshot. Keys: q quits, s sorts the tasks, p pauses, ? shows the others.",
		Example: "oncebus top --addr http://127.0.0.1:8080\noncebus top --once --output json",
		Flags:   o.define,
		Run:     o.run,
		Words: func(_ cli.Process, flag string) []string {
			if flag == "sort" {
				return orderNames()
			}
			return nil
		},
	}
}

func (o *options) define(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.addresses, "addr", nil, "`address` of the admin server, as http://host:port; several for several processes")
	fs.StringVar(&o.tokenFile, "token-file", "", "`file` with the bearer token")
	fs.StringVar(&o.ca, "ca-file", "", "PEM `file` of the authorities of the server's certificate; default: those of the system")
	fs.StringVar(&o.cert, "cert-file", "", "PEM `file` of a client certificate")
	fs.StringVar(&o.key, "key-file", "", "PEM `file` of its private key")
	fs.StringVar(&o.sort, "sort", byState.String(), "how the tasks are sorted: "+strings.Join(orderNames(), ", "))
	fs.BoolVar(&o.once, "once", false, "print one snapshot and end")
	cli.OutputFlag(fs, &o.json)
}

func orderNames() (names []string) {
	for by := range orders {
		names = append(names, by.String())
	}
	return names
}

func (o *options) run(ctx context.Context, _ []string, p cli.Process) int {
	by, err := parseOrder(o.sort)
	if err != nil {
		return cli.UsageError(p, "top", err.Error())
	}
	feeds, err := o.feeds(p.Environ)
	if err != nil {
		cli.Printf(p.Stderr, "oncebus top: %v\n", err)
		return cli.ExitWrong
	}
	if terminal := cli.Terminal(p.Stdout); terminal != nil && !o.once && !o.json {
		err = run(ctx, feeds, by, p.Stdin, terminal, p.Environ)
	} else {
		err = o.print(ctx, feeds, by, p)
	}
	feeds[0].client.CloseIdleConnections()
	if err != nil {
		cli.Printf(p.Stderr, "oncebus top: %v\n", err)
		return cli.ExitFailed
	}
	return cli.ExitStopped
}

func parseOrder(name string) (order, error) {
	for by := range orders {
		if by.String() == name {
			return by, nil
		}
	}
	return 0, fmt.Errorf("--sort %q is unknown, want %s", name, strings.Join(orderNames(), ", "))
}

// feeds returns a feed for each address.
func (o *options) feeds(environ []string) ([]*feed, error) {
	variable := func(name string) string {
		for _, v := range environ {
			if value, ok := strings.CutPrefix(v, "ONCEBUS_ADMIN_"+name+"="); ok {
				return value
			}
		}
		return ""
	}
	addresses := o.addresses
	if len(addresses) == 0 {
		scheme, addr := "http://", variable("ADDR")
		if variable("TLS_CERT_FILE") != "" {
			scheme = "https://"
		}
		if addr == "" {
			addr = addressDefault
		}
		addresses = []string{scheme + addr}
	}
	client, err := newClient(o.ca, o.cert, o.key)
	if err != nil {
		return nil, err
	}
	token := func() (string, error) { return variable("TOKEN"), nil }
	if file := firstOf(o.tokenFile, variable("TOKEN_FILE")); file != "" {
		token = func() (string, error) { return security.ReadSecret(file) }
	}
	var feeds []*feed
	var mistakes []error
	for _, a := range addresses {
		address, err := parseAddress(a)
		mistakes = append(mistakes, err)
		feeds = append(feeds, &feed{address: address, client: client, token: token})
	}
	if _, err := token(); err != nil {
		mistakes = append(mistakes, err)
	}
	return feeds, errors.Join(mistakes...)
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// parseAddress completes an address to http://host:port. If the host means every address of the machine, such
// as 0.0.0.0, it becomes the loopback address.
func parseAddress(text string) (string, error) {
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("--addr %q is malformed, want http://host:port", text)
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() == "" || ip != nil && ip.IsUnspecified() {
		u.Host = net.JoinHostPort("127.0.0.1", u.Port())
	}
	return strings.TrimRight(u.Scheme+"://"+u.Host+u.Path, "/"), nil
}

// print prints one snapshot of each process: as text, or as a line of JSON exactly as the process sends it.
func (o *options) print(ctx context.Context, feeds []*feed, by order, p cli.Process) error {
	const wide = 1 << 16 // no line is cut
	for i, f := range feeds {
		text, s, err := f.once(ctx)
		if err != nil {
			return err
		}
		if o.json {
			cli.Printf(p.Stdout, "%s\n", text)
			continue
		}
		if i > 0 {
			cli.Printf(p.Stdout, "\n")
		}
		lines := append(summary(s), line{})
		lines = append(append(lines, routes(s, wide, len(s.Routes))...), line{})
		lines = append(lines, tasks(s, wide, by, 0, len(s.Tasks))...)
		if who := senders(s, wide, len(s.Senders)); who != nil {
			lines = append(append(lines, line{}), who...)
		}
		if log := warnings(s, len(s.Log)); log != nil {
			lines = append(append(lines, line{}), log...)
		}
		for _, l := range lines {
			cli.Printf(p.Stdout, "%s\n", l.write(wide, false))
		}
	}
	return nil
}
