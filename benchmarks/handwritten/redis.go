package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"
	"github.com/twmb/franz-go/pkg/kgo"
)

// redisStore claims a key with SET NX. The value is 1, or the position of the event that claimed the key.
type redisStore struct {
	client   rueidis.Client
	window   time.Duration
	position bool
	commands rueidis.Commands // the commands of the last claim, whose memory the next claim reuses
}

func openRedis(server string, window time.Duration, position bool) (*redisStore, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server}, DisableCache: true})
	if err != nil {
		return nil, fmt.Errorf("connect to Redis: %w", err)
	}
	return &redisStore{client: client, window: window, position: position}, nil
}

// claim sets all keys in one pipeline. Redis executes the commands in order, so of two equal keys in the pipeline the
// first one is new.
func (s *redisStore) claim(ctx context.Context, records []*kgo.Record) (fresh []*kgo.Record, err error) {
	if len(records) == 0 {
		return nil, nil
	}
	s.commands = s.commands[:0]
	for _, r := range records {
		set := s.client.B().Set().Key(rueidis.BinaryString(r.Key))
		if s.position {
			s.commands = append(s.commands, set.Value(position(r)).Nx().Get().Px(s.window).Build())
		} else {
			s.commands = append(s.commands, set.Value("1").Nx().Px(s.window).Build())
		}
	}
	for i, result := range s.client.DoMulti(ctx, s.commands...) {
		isNew, err := s.isNew(result, records[i])
		if err != nil {
			return nil, err
		}
		if isNew {
			fresh = append(fresh, records[i])
		}
	}
	return fresh, nil
}

// isNew reads the response to a SET. With NX alone, a null response says that the key existed. With NX and GET, a
// null response says that the key did not exist, and any other response is the value of the key.
func (s *redisStore) isNew(result rueidis.RedisResult, r *kgo.Record) (bool, error) {
	value, err := result.ToString()
	isNull := rueidis.IsRedisNil(err)
	switch {
	case err != nil && !isNull:
		return false, err
	case s.position:
		return isNull || value == position(r), nil
	}
	return !isNull, nil
}

// position names an event of the input.
func position(r *kgo.Record) string { return fmt.Sprintf("%d:%d", r.Partition, r.Offset) }

// commit has nothing to do: each SET is permanent at once.
func (*redisStore) commit(context.Context) error { return nil }

func (s *redisStore) close(context.Context) { s.client.Close() }
