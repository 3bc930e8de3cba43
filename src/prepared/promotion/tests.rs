use super::*;

const TEXT: &[u8] = b"select 1\0\0\0";

fn promotions() -> (Promotions, Registry, Context) {
    let registry = Registry::new();
    let context = registry.context(b"");
    (Promotions::default(), registry, context)
}

fn add(world: &(Promotions, Registry, Context), definition: &[u8], most: usize) -> u64 {
    let (promotions, registry, context) = world;
    let hash = promotions.hash(context, definition);
    promotions.promote((hash, context, definition), registry, (most, 1 << 20));
    hash
}

#[test]
fn a_text_is_due_when_it_was_seen_so_often() {
    let (promotions, _, context) = promotions();
    let hash = promotions.hash(&context, TEXT);
    let counts: Vec<bool> = (0..4).map(|_| promotions.count(hash, 3)).collect();
    assert_eq!(counts, [false, false, true, true]);
    promotions.refuse(hash);
    assert!(!promotions.count(hash, 1));
}

#[test]
fn rare_texts_do_not_keep_a_frequent_one_from_being_counted() {
    let (promotions, _, context) = promotions();
    let hash = promotions.hash(&context, TEXT);
    let mut rare = 0_u64;
    let is_due = (0..100).any(|_| {
        for _ in 0..100 {
            rare += 1;
            promotions.count(promotions.hash(&context, &rare.to_be_bytes()), 1000);
        }
        promotions.count(hash, 50)
    });
    assert!(is_due);
}

#[test]
fn what_is_promoted_is_found_by_its_text_and_settings() {
    let world = promotions();
    let hash = add(&world, TEXT, 10);
    let (promotions, registry, context) = &world;
    let list = promotions.list(0);
    let found = list.get(hash, context, TEXT).unwrap();
    assert_eq!(found.statement().unwrap().definition(), TEXT);
    assert!(list.get(hash, context, b"select 2\0\0\0").is_none());
    assert!(list.get(hash, &registry.context(b"German"), TEXT).is_none());
    let named = registry.intern(TEXT, context, 1 << 20).unwrap();
    assert_ne!(named.id(), found.statement().unwrap().id());
}

#[test]
fn there_are_no_more_than_are_allowed() {
    let world = promotions();
    add(&world, TEXT, 1);
    add(&world, b"select 2\0\0\0", 1);
    assert_eq!(world.0.len(), 1);
}

#[test]
fn each_period_all_are_read_anew_and_the_unused_go() {
    let world = promotions();
    let hash = add(&world, TEXT, 10);
    add(&world, b"select 2\0\0\0", 10);
    let (promotions, registry, context) = &world;
    let period = micros(PERIOD);
    let edition = |now| {
        let list = promotions.list(now);
        let found = list.get(hash, context, TEXT).unwrap();
        found.statement().unwrap().edition()
    };
    let before = edition(period - 1);
    assert_eq!(edition(period), before + 1);
    assert_eq!(edition(2 * period - 1), before + 1);
    assert_eq!((promotions.len(), edition(2 * period)), (2, before + 2));
    assert_eq!(promotions.len(), 1);
    promotions.list(3 * period);
    promotions.list(4 * period);
    assert!(promotions.is_empty() && registry.is_empty());
}

#[test]
fn one_with_a_bad_plan_is_run_plainly_and_stays_known() {
    let world = promotions();
    let hash = add(&world, TEXT, 10);
    let (promotions, _, context) = &world;
    promotions.ran(hash, Run::Fresh, 100);
    let doubted = (0..10).find_map(|_| promotions.ran(hash, Run::Reused, 100_000));
    assert_eq!(doubted, Some(Verdict::Doubted));
    let is_used = |now| {
        let list = promotions.list(now);
        list.get(hash, context, TEXT).unwrap().statement().is_some()
    };
    assert!(!is_used(0));
    let over = (0..20).find_map(|_| promotions.ran(hash, Run::Plain, 100));
    assert_eq!(over, Some(Verdict::Over));
    for periods in 1..5 {
        assert!(!is_used(periods * micros(PERIOD)));
    }
}
