package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// Finalized is the result of Finalize.
type Finalized struct {
	// Level is the level of the app. Raised reports whether this call raised it.
	Level  int  `json:"level"`
	Raised bool `json:"raised"`
	// Set is the number of the route set in force.
	Set int64 `json:"set"`
	// Live are the instances with members in the groups of the app. All of them can read the level.
	Live []string `json:"live"`
}

// Finalize raises the level of an app to the newest level of this build. From then on a build that does not
// know the level refuses the app, so that an operator cannot go back to such a build. Finalize requires that
// each live process can read the level and has the routes of the file, which become route set 1. Its error
// names all processes that do not.
//
// Finalize may miss a process of an earlier build that starts meanwhile. Such a process stops at the first record
// that it cannot read, and commits nothing of this record.
func Finalize(ctx context.Context, c Conn, cfg Config, file *rules.Routes, by string) (*Finalized, error) {
	for {
		f, err := finalizeOnce(ctx, c, cfg, file, by)
		if !isFenced(err) && !errors.Is(err, errSetsChanged) {
			return f, err
		}
		if err := kafka.Pause(ctx, fencedPause); err != nil {
			return nil, err
		}
	}
}

func finalizeOnce(ctx context.Context, c Conn, cfg Config, file *rules.Routes, by string) (*Finalized, error) {
	s := &setup{Conn: c, cfg: cfg, routes: file}
	m, err := s.readSets(ctx)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, errNeverRan(cfg.AppID)
	}
	f := &Finalized{Level: m.level(), Set: m.sets.inForce}
	if f.Live, err = LiveInstances(ctx, c, cfg.AppID); err != nil || m.level() >= wire.LevelNewest {
		return f, err
	}
	if f.Live, err = s.askLive(ctx, by); err != nil {
		return nil, err
	}
	claims := func(r *rules.Route) bool { return r.Mode == rules.ClaimMode }
	if m.Version < manifestVersionAppTokens && slices.ContainsFunc(file.Routes, claims) {
		return nil, kafka.OperatorErrorf("the claim tokens of app %s do not name it yet: stop all processes, start them, and repeat oncebus finalize", cfg.AppID)
	}
	if err := s.raiseLevel(ctx, by); err != nil {
		return nil, err
	}
	f.Level, f.Set, f.Raised = wire.LevelNewest, 1, true
	return f, nil
}

// answerMax is how long a process may take to answer the question of askLive.
const answerMax = 10 * time.Second

// askLive asks all processes which levels they can read and which routes they run, and returns the instances
// that are running. Its error names each process that cannot read the new level, or runs other routes.
func (s *setup) askLive(ctx context.Context, by string) (live []string, err error) {
	t := newTopology(s.cfg.AppID, s.routes)
	ask := Ask{ID: rand.Text(), By: by, At: time.Now().UTC().Truncate(time.Second)}
	if err := writeRow(ctx, s.Client, t, AskKey, ask); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(answerMax); ; {
		if live, err = LiveInstances(ctx, s.Conn, s.cfg.AppID); err != nil {
			return nil, err
		}
		seen, err := ReadSeen(ctx, s.Conn, s.cfg.AppID)
		if err != nil {
			return nil, err
		}
		answered := !slices.ContainsFunc(live, func(instance string) bool { return seen[instance].Answers != ask.ID })
		if answered || time.Now().After(deadline) {
			return live, refuseBehind(live, seen, ask.ID, s.routes)
		}
		if err := kafka.Pause(ctx, fencedPause); err != nil {
			return nil, err
		}
	}
}

// refuseBehind returns an operator error for each live process that has not answered, cannot read the newest
// level, or runs other routes than the file's.
func refuseBehind(live []string, seen map[string]Seen, ask string, file *rules.Routes) error {
	var mistakes []error
	for _, instance := range live {
		row := seen[instance]
		switch {
		case row.Answers != ask:
			mistakes = append(mistakes, kafka.OperatorErrorf("process %s does not say which levels it reads: it is of an earlier build, or has just ended or begun; update it, then repeat oncebus finalize", instance))
		case row.Newest < wire.LevelNewest:
			mistakes = append(mistakes, kafka.OperatorErrorf("process %s of build %s reads levels up to %d, this build writes %d: update it, then repeat oncebus finalize", instance, row.Build, row.Newest, wire.LevelNewest))
		case row.Routes != file.Digest:
			mistakes = append(mistakes, kafka.OperatorErrorf("process %s runs other routes than this file, which would become route set 1: give both the same file, then repeat oncebus finalize", instance))
		}
	}
	return errors.Join(mistakes...)
}

// raiseLevel writes the newest level, and the routes as set 1, in the transaction that writes the manifest.
func (s *setup) raiseLevel(ctx context.Context, by string) error {
	t, err := s.setUpTopics(ctx)
	if err != nil {
		return err
	}
	set := newRouteSet(1, s.routes, by)
	rows, err := setRows(set)
	if err != nil {
		return err
	}
	err = s.editManifest(ctx, t, func(now *Manifest) error {
		if now.hasSets() {
			return errSetsChanged // another command has raised the level
		}
		now.Version, now.Level, now.sets = manifestVersionLevels, wire.LevelNewest, now.sets.with(set)
		_, err := now.reconcile(t, s.routes, s.cfg.KeySecret.Bytes())
		return err
	}, rows...)
	if err != nil {
		return fmt.Errorf("raise the level of app %s: %w", s.cfg.AppID, err)
	}
	s.Log.Info("level raised", "app", s.cfg.AppID, "encodings", wire.LevelNewest)
	return nil
}
