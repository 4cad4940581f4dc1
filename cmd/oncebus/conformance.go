package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/processor/conformance"
	"oncebus/processor/kafka"
)

const conformanceAbout = "Tests whether an executor keeps the protocol of claim mode. It plays the part of oncebus on topics of\n" +
	"its own: it dispatches the events of a scenario file, answers start and renew, supersedes an\n" +
	"attempt, has the executor killed, and judges what it wrote. The table has each rule and whether it\n" +
	"holds. The exit code is 1 if one is broken, or if no rule could be judged.\n\n" +
	"With --run the kit starts the executor, kills it with SIGKILL and starts it again. The command gets\n" +
	"EXECUTOR_BROKERS, EXECUTOR_INPUT, EXECUTOR_OUTCOMES, EXECUTOR_ANSWERS, EXECUTOR_GROUP and\n" +
	"EXECUTOR_START in its environment. It also gets EXECUTOR_INSTANCE, EXECUTOR_RENEW_MS,\n" +
	"EXECUTOR_GATEWAY_LIMIT_MS and EXECUTOR_JOURNAL, a temporary file, unless the environment of the kit\n" +
	"has them. With --kill another command kills the executor, and what started it starts it again.\n" +
	"Without both the kit asks at the terminal. Brokers, TLS and credentials are the settings of 'oncebus run'.\n\n" +
	"The kit also runs a gateway that charges cards, for work with an effect in another system. Its URL is\n" +
	"in EXECUTOR_GATEWAY. POST /charges takes {\"reference\":R,\"account\":A,\"amount\":N} with the header\n" +
	"Idempotency-Key: R, and GET /charges?reference=R asks for a charge. R is the oncebus-key of the event.\n" +
	"With 'gateway: ask' in the scenario the gateway ignores Idempotency-Key, and EXECUTOR_GATEWAY_ASK is\n" +
	"true. The step crash-in-work kills the executor while it charges, and the kit counts the charges."

// conformanceOptions are the flags of 'oncebus conformance'.
type conformanceOptions struct {
	brokers                         []string
	topic, outcomes, answers, group string
	run, kill, gateway              string
	create, json                    bool
}

// conformanceCommand is 'oncebus conformance'.
func conformanceCommand() cli.Command {
	var o conformanceOptions
	return cli.Command{
		Name: "conformance", Synopsis: "--topic NAME --outcomes NAME [OPTIONS] FILE", About: "test whether an executor keeps the protocol of claim mode", ArgsMax: 1,
		Long: conformanceAbout,
		Example: "oncebus conformance --brokers localhost:9092 --topic kit.run --outcomes kit.outcomes --answers kit.answers --group kit --run ./executor scenario.yaml\n" +
			"oncebus conformance --topic kit.run --outcomes kit.outcomes --answers kit.answers --group kit --kill 'kubectl delete pod kit --force' scenario.yaml -o json",
		Flags: o.define,
		Run:   o.runCommand,
	}
}

func (o *conformanceOptions) define(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.brokers, "brokers", nil, "seed brokers as `host:port`, comma separated; default: $ONCEBUS_BROKERS")
	fs.StringVar(&o.topic, "topic", "", "the `topic` that the executor reads, as the output of a route; nothing else may write to it")
	fs.StringVar(&o.outcomes, "outcomes", "", "the `topic` to which the executor writes")
	fs.StringVar(&o.answers, "answers", "", "the `topic` on which the kit answers the executor")
	fs.StringVar(&o.answers, "replies", "", "the same as --answers")
	fs.Lookup("replies").Hidden = true
	fs.StringVar(&o.group, "group", "executor", "the consumer `group` of the executor")
	fs.StringVar(&o.run, "run", "", "the `command` that runs the executor, for a shell")
	fs.StringVar(&o.kill, "kill", "", "the `command` that kills the executor, for a shell")
	fs.StringVar(&o.gateway, "gateway", "127.0.0.1:0", "`address` on which the kit's gateway listens, for an executor that runs elsewhere")
	fs.BoolVar(&o.create, "create-topics", false, "create the topics that do not exist, with two partitions")
	cli.OutputFlag(fs, &o.json)
}

func (o *conformanceOptions) check(args []string, p cli.Process) error {
	switch {
	case len(args) == 0:
		return errors.New("want a scenario file")
	case o.topic == "" || o.outcomes == "" || o.group == "":
		return errors.New("want --topic, --outcomes and --group")
	case o.topic == o.outcomes || o.topic == o.answers || o.outcomes == o.answers:
		return errors.New("--topic, --outcomes and --answers are three topics")
	case o.run != "" && o.kill != "":
		return errors.New("choose one of --run and --kill")
	case o.run == "" && o.kill == "" && p.Stdin == nil:
		return errors.New("want --run or --kill, or a terminal")
	}
	return nil
}

func (o *conformanceOptions) runCommand(ctx context.Context, args []string, p cli.Process) int {
	if err := o.check(args, p); err != nil {
		return cli.UsageError(p, "conformance", err.Error())
	}
	s, err := settings.Parse(p.Environ)
	if len(o.brokers) > 0 {
		s.Processor.Brokers = o.brokers
	}
	if err = errors.Join(err, s.Processor.Config.Validate()); err != nil {
		return fail(p, "conformance", cli.ExitWrong, err)
	}
	scenario, err := readScenario(args[0])
	if err != nil {
		return fail(p, "conformance", cli.ExitWrong, err)
	}
	timeline, err := o.play(ctx, p, s, scenario)
	if errors.Is(err, conformance.ErrNotJudged) {
		err = fmt.Errorf("%w; its output is above", err)
	}
	if err != nil {
		return fail(p, "conformance", codeOf(err), err)
	}
	return o.show(p, conformance.Check(scenario, timeline))
}

// play runs the scenario with a gateway and with a temporary directory, which it removes at the end.
func (o *conformanceOptions) play(ctx context.Context, p cli.Process, s settings.Settings, scenario *conformance.Scenario) (_ *conformance.Timeline, err error) {
	gateway, err := conformance.Listen(ctx, o.gateway)
	if err != nil {
		return nil, kafka.OperatorErrorf("--gateway %s: %w", o.gateway, err)
	}
	defer func() { err = errors.Join(err, gateway.Close()) }()
	dir, err := os.MkdirTemp("", "oncebus-conformance-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	executor := &executorProcess{run: o.run, kill: o.kill, p: p, environ: o.environ(p, s.Processor.Brokers, scenario, gateway.URL(), dir)}
	if o.run == "" {
		cli.Printf(p.Stderr, "EXECUTOR_GATEWAY=%s\n", gateway.URL())
	}
	defer executor.stop(context.WithoutCancel(ctx)) //nolint:errcheck // the run has ended
	return conformance.Run(ctx, conformance.Config{
		Client: s.Processor.Config.Config, Topic: o.topic, Outcomes: o.outcomes, Answers: o.answers, Group: o.group, CreateTopics: o.create, Gateway: gateway,
		Control: conformance.Control{Start: executor.start, Kill: executor.end, Stop: executor.stop, Ended: executor.ended},
		Step:    func(index int) { showStep(p, scenario, index) },
	}, scenario, cli.NewLogger(p.Stderr, slog.LevelError, s.LogFormat))
}

// environ returns the variables that the kit sets for the executor, in addition to the kit's own environment.
func (o *conformanceOptions) environ(p cli.Process, brokers []string, s *conformance.Scenario, gateway, dir string) []string {
	environ := []string{
		"EXECUTOR_BROKERS=" + strings.Join(brokers, ","), "EXECUTOR_INPUT=" + o.topic, "EXECUTOR_OUTCOMES=" + o.outcomes,
		"EXECUTOR_ANSWERS=" + o.answers, "EXECUTOR_GROUP=" + o.group, fmt.Sprint("EXECUTOR_START=", s.Start),
		"EXECUTOR_GATEWAY=" + gateway, fmt.Sprint("EXECUTOR_GATEWAY_ASK=", s.Gateway == conformance.GatewayAsk),
	}
	for name, value := range map[string]string{
		"EXECUTOR_INSTANCE=": o.group,
		"EXECUTOR_RENEW_MS=": strconv.FormatInt(max((s.Lease/renewals).Milliseconds(), 1), 10),
		"EXECUTOR_JOURNAL=":  filepath.Join(dir, "journal"),
		// The variable says for how long a charge without an answer may still take effect. A short time
		// suffices, because the kit's gateway never books a charge late.
		"EXECUTOR_GATEWAY_LIMIT_MS=": "1000",
	} {
		if !slices.ContainsFunc(p.Environ, func(set string) bool { return strings.HasPrefix(set, name) }) {
			environ = append(environ, name+value)
		}
	}
	return environ
}

// renewals is how many times an executor renews during the length of one lease, unless the environment sets
// EXECUTOR_RENEW_MS.
const renewals = 5

func readScenario(name string) (*conformance.Scenario, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, conformance.ScenarioBytesMax+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("read the scenario %s: %w", name, err)
	}
	return conformance.ParseScenario(name, text)
}

// showStep prints that a step begins.
func showStep(p cli.Process, s *conformance.Scenario, index int) {
	if index == len(s.Steps) {
		cli.Printf(p.Stderr, "judging\n")
		return
	}
	cli.Printf(p.Stderr, "step %d of %d: %s %s\n", index+1, len(s.Steps), s.Steps[index].Kind, s.Steps[index].Event.Name)
}

// shownConformance is the output as JSON. Its JSON names are an interface.
type shownConformance struct {
	Conforms bool                  `json:"conforms"`
	Broken   []conformance.Rule    `json:"broken"`
	Rules    []conformance.Verdict `json:"rules"`
}

// show prints the verdicts and returns the exit code.
func (o *conformanceOptions) show(p cli.Process, verdicts []conformance.Verdict) int {
	held := 0
	for i := range verdicts {
		if verdicts[i].Held {
			held++
		}
	}
	shown := shownConformance{Broken: conformance.Broken(verdicts), Rules: verdicts}
	shown.Conforms = len(shown.Broken) == 0 && held > 0
	var err error
	if o.json {
		if shown.Broken == nil {
			shown.Broken = []conformance.Rule{}
		}
		err = json.NewEncoder(p.Stdout).Encode(shown)
	} else {
		err = shown.write(p.Stdout)
	}
	switch {
	case err != nil:
		return fail(p, "conformance", cli.ExitFailed, err)
	case !shown.Conforms:
		return cli.ExitFailed
	}
	return cli.ExitStopped
}

// write prints the verdicts as a table, and below it what was found.
func (s *shownConformance) write(to io.Writer) error {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for i := range s.Rules {
		v := &s.Rules[i]
		state := "BROKEN"
		switch {
		case v.Held:
			state = "holds"
		case !v.Judged:
			state = "not judged"
		}
		cli.Printf(table, "%s\t%s\t%s\n", v.Rule, state, v.Demands)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range s.Rules {
		for _, finding := range s.Rules[i].Findings {
			cli.Printf(to, "%s: %s\n", s.Rules[i].Rule, finding)
		}
	}
	if s.Conforms {
		cli.Printf(to, "the executor keeps the protocol\n")
		return nil
	}
	names := make([]string, len(s.Broken))
	for i, rule := range s.Broken {
		names[i] = string(rule)
	}
	_, err := fmt.Fprintf(to, "the executor does not keep the protocol: %s\n", strings.Join(names, ", "))
	return err
}
